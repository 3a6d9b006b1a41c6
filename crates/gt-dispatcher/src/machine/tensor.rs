//! What is known of a tensor. What the results of a program are, and where they lie, is worked out once: the tensors of
//! all its runs refer to that, and a tensor has facts of its own only once something about it changes.

use super::holders::{Holder, Holders};
use super::mesh::Mesh;
use crate::shard::Divided;
use gt_ir::layout::Layouts;
use gt_ir::{Layout, Program, Structure, Ty};
use gt_net::msg::{Failure, WorkerId};
use std::ops::Deref;
use std::sync::Arc;

/// What is known of a tensor; its facts are fields of it, too.
#[derive(Debug)]
pub struct Tensor {
    is: Is,
    /// Why it has no value.
    pub poison: Option<Box<Failure>>,
    /// The unfinished program that frees it if it succeeds; 0 for none.
    pub freed_by: u64,
    /// When it was last found among the inputs of a program, by the session's count.
    pub read_at: u64,
    pub joined: Joined,
}

/// Whether programs put a tensor together that lies in pieces, to read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joined {
    Never,
    /// One has, and left it in pieces.
    Once,
    /// It was made whole for them.
    Stays,
    /// There was no room for it.
    Cannot,
}

/// What a tensor is and where it lies.
#[derive(Clone, Debug)]
pub struct Facts {
    pub ty: Ty,
    pub holders: Holders,
    /// How it lies on a mesh, if no worker has all of it; its holders are the mesh's workers.
    pub spread: Option<Arc<Spread>>,
}

/// How a tensor lies on the workers of a mesh.
#[derive(Clone, Debug)]
pub struct Spread {
    pub mesh: Arc<Mesh>,
    pub layouts: Layouts,
}

/// The facts of all results of a program, in the order of its live-outs.
#[derive(Debug)]
pub struct Made {
    results: Vec<Facts>,
    /// The bytes of each at one holder, and of all together.
    bytes: Vec<u64>,
    pub all_bytes: u64,
}

/// A result of a program, as it was made.
#[derive(Clone, Debug)]
pub struct Origin {
    by: Arc<Made>,
    at: u32,
}

#[derive(Debug)]
enum Is {
    /// As it was made.
    Made(Origin),
    Own(Box<Facts>),
}

impl PartialEq for Origin {
    fn eq(&self, other: &Origin) -> bool {
        Arc::ptr_eq(&self.by, &other.by) && self.at == other.at
    }
}

impl Spread {
    /// How many pieces make up the tensor. Axes on which it is whole hold the same pieces again.
    pub fn pieces(&self) -> usize {
        let axes = self.layouts.iter().zip(&self.mesh.shape);
        axes.filter(|(layout, _)| matches!(layout, Layout::Split(_))).map(|(_, n)| n).product()
    }
}

impl Facts {
    /// Bytes at one holder, on average.
    fn bytes(&self) -> u64 {
        let pieces = self.spread.as_ref().map_or(1, |s| s.pieces() as u64);
        self.ty.bytes() as u64 / pieces
    }
}

impl Made {
    fn new(results: Vec<Facts>) -> Made {
        let bytes: Vec<u64> = results.iter().map(Facts::bytes).collect();
        let all_bytes = bytes.iter().sum();
        Made { results, bytes, all_bytes }
    }

    /// By a program that runs on one worker.
    pub fn alone(structure: &Structure, types: &[Ty], worker: WorkerId) -> Made {
        let facts = |out: &u32| {
            let mut holders = Holders::default();
            holders.push(Holder { worker, moving: None });
            Facts { ty: types[*out as usize].clone(), holders, spread: None }
        };
        Made::new(structure.outs.iter().map(facts).collect())
    }

    /// By a program that was divided over a mesh.
    pub fn divided(structure: &Structure, types: &[Ty], mesh: &Arc<Mesh>, divided: &Divided) -> Made {
        let facts = |(out, layouts): (&u32, &Layouts)| {
            let splits = layouts.iter().zip(&mesh.shape).any(|(l, n)| *l != Layout::Whole && *n > 1);
            let spread = || Arc::new(Spread { mesh: mesh.clone(), layouts: layouts.clone() });
            let ty = types[*out as usize].clone();
            Facts { ty, holders: Holders::all(mesh), spread: splits.then(spread) }
        };
        Made::new(structure.outs.iter().zip(&divided.outs).map(facts).collect())
    }

    /// Its results as tensors, with the numbers that a run of the program gives them.
    pub fn tensors(self: &Arc<Made>, program: &Program) -> impl Iterator<Item = (gt_ir::TensorId, Tensor)> {
        program.outs.iter().zip(0..self.results.len() as u32).map(|(id, at)| (*id, Tensor::made(self, at)))
    }
}

impl Deref for Tensor {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        match &self.is {
            Is::Made(Origin { by, at }) => &by.results[*at as usize],
            Is::Own(facts) => facts,
        }
    }
}

impl Tensor {
    /// A tensor that nobody holds.
    pub fn new(ty: Ty) -> Tensor {
        let facts = Facts { ty, holders: Holders::default(), spread: None };
        Tensor { is: Is::Own(Box::new(facts)), poison: None, freed_by: 0, read_at: 0, joined: Joined::Never }
    }

    /// A result of a program.
    pub fn made(by: &Arc<Made>, at: u32) -> Tensor {
        let is = Is::Made(Origin { by: by.clone(), at });
        Tensor { is, poison: None, freed_by: 0, read_at: 0, joined: Joined::Never }
    }

    /// The result as which it was made, if nothing about it has changed since.
    pub fn origin(&self) -> Option<&Origin> {
        match &self.is {
            Is::Made(origin) => Some(origin),
            Is::Own(_) => None,
        }
    }

    /// It is the result of another program from now on.
    pub fn remake(&mut self, by: &Arc<Made>, at: u32) {
        self.is = Is::Made(Origin { by: by.clone(), at });
        self.joined = Joined::Never;
    }

    /// The facts, to be changed.
    pub fn facts(&mut self) -> &mut Facts {
        if let Is::Made(Origin { by, at }) = &self.is {
            self.is = Is::Own(Box::new(by.results[*at as usize].clone()));
        }
        match &mut self.is {
            Is::Own(facts) => facts,
            Is::Made(_) => unreachable!("it was just given facts of its own"),
        }
    }

    /// True if programs may read it.
    pub fn is_usable(&self) -> bool {
        self.poison.is_none() && self.freed_by == 0
    }

    pub fn is_at(&self, worker: WorkerId) -> bool {
        self.holders.contains(worker)
    }

    /// A holder whose copy does not depend on another worker.
    pub fn source(&self) -> Option<WorkerId> {
        self.holders.source()
    }

    /// Bytes at one holder, on average.
    pub fn bytes(&self) -> u64 {
        match &self.is {
            Is::Made(Origin { by, at }) => by.bytes[*at as usize],
            Is::Own(facts) => facts.bytes(),
        }
    }
}
