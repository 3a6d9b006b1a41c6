//! Signals as they travel: a name that stands for a mesh of workers and a layout on it (C8).
//!
//! A client sends each signal once and refers to it by its number in the session's table. The table only grows: a
//! signal that was edited gets a new number, so that programs which name the old one keep their meaning.

use crate::{Layout, Result, Shape, bail};
use serde::{Deserialize, Serialize};

/// What a structure says about one of its values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// The value, numbered as operands are: inputs first.
    pub value: u32,
    /// The signal, by its number in the session's table.
    pub signal: u32,
    /// The value lies as the signal says. Otherwise the instruction that makes it runs on the signal's workers, and
    /// its layout is for the planner to choose; a value that can lie as the signal says for the same cost should.
    pub firm: bool,
}

/// How a tensor lies on one axis of a signal's mesh, before its rank is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Lay {
    /// Every worker of the axis holds all of it.
    #[default]
    Whole,
    /// Split along this dimension; negative ones count from the last.
    Split(i32),
    /// The planner chooses.
    Free,
}

/// One axis of a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct MeshAxis {
    pub name: String,
    /// How many workers lie along it; 0 takes as many as there are. At most one axis is so.
    pub size: u32,
}

/// A signal with all that a dispatcher needs of it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct SignalSpec {
    /// As the client names it, for messages and logs.
    pub name: String,
    /// The mesh; the last axis runs fastest over `workers`.
    pub axes: Vec<MeshAxis>,
    /// Positions among the connected workers in order of arrival; empty means all of them.
    pub workers: Vec<u32>,
    /// One entry per axis.
    pub lays: Vec<Lay>,
    /// (i, n): of these workers only the i-th of n runs of about equal length, as a stage of a pipeline has them.
    /// Where there are fewer workers than runs, runs share workers. n = 0 means all of them.
    pub part: (u32, u32),
    /// Workers to go on with where none of `workers` is there, those of the other stages of a pipeline; `part` is of them
    /// then, and of nothing else.
    pub others: Vec<u32>,
}

/// Bounds on what a client may send.
const MAX_AXES: usize = 8;
const MAX_WORKERS: usize = 1 << 16;
const MAX_NAME: usize = 1 << 12;

/// A signal's mesh, on the workers that are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Present {
    /// The size of each axis.
    pub shape: Vec<usize>,
    /// Positions among the connected workers, as many as the shape has places.
    pub workers: Vec<u32>,
    /// Something is missing: what to tell the client, once.
    pub warning: Option<String>,
}

impl SignalSpec {
    /// Fails on what no client of this build sends.
    pub fn check(&self) -> Result<()> {
        let open = self.axes.iter().filter(|a| a.size == 0).count();
        let (part, parts) = self.part;
        let whole = parts == 0 || part < parts;
        let fits = whole && self.axes.len() == self.lays.len() && !self.axes.is_empty() && open <= 1;
        let bounded = self.axes.len() <= MAX_AXES
            && self.workers.len().max(self.others.len()) <= MAX_WORKERS
            && self.axes.iter().all(|a| a.size as usize <= MAX_WORKERS && a.name.len() <= MAX_NAME)
            && self.name.len() <= MAX_NAME;
        if !fits || !bounded {
            bail!(Value, "signal: its mesh and its layout do not fit each other");
        }
        Ok(())
    }

    /// The mesh on the workers that are connected, whose numbers are given in order. Workers that are not there are left out,
    /// and axes shrink, the first one first, until the mesh fits; an error if none of the workers is there.
    pub fn on(&self, connected: &[u32]) -> Result<Present> {
        let count = connected.len();
        let there = |workers: &[u32]| workers.iter().copied().filter(|w| connected.contains(w)).collect();
        let mut workers: Vec<u32> = match self.workers.is_empty() {
            true => connected.to_vec(),
            false => there(&self.workers),
        };
        let instead = workers.is_empty();
        if instead {
            workers = there(&self.others);
        }
        if workers.is_empty() {
            let connected = match *connected {
                [] => "no worker is connected".to_string(),
                [one] => format!("only worker {one} is connected"),
                [first, .., last] if (last - first) as usize + 1 == count => {
                    format!("only workers {first} to {last} are connected")
                }
                _ => format!("only workers {connected:?} are connected"),
            };
            bail!(
                Value,
                "signal {:?}: none of its workers {:?} is there, {connected}: start more with `gt worker`, or name others",
                self.name,
                self.workers
            );
        }
        let (part, parts) = (self.part.0 as usize, self.part.1 as usize);
        if parts > 0 && (instead || self.others.is_empty()) {
            let range = match workers.len() {
                n if n < parts => part * n / parts..part * n / parts + 1,
                n => crate::layout::part_range(n, parts, part),
            };
            workers = workers[range].to_vec();
        }
        let shape = self.shape_on(workers.len());
        let asked: usize = self.axes.iter().map(|a| a.size.max(1) as usize).product();
        let missing: Vec<u32> = self.workers.iter().copied().filter(|w| !connected.contains(w)).collect();
        let used: usize = shape.iter().product();
        let short = used < asked || !missing.is_empty();
        workers.truncate(used);
        let warning = short.then(|| {
            let what = match missing.is_empty() {
                true => format!("it asks for {asked} workers and {count} are there"),
                false => format!("workers {missing:?} are not there"),
            };
            format!("signal {:?}: {what}; it goes on with workers {workers:?}", self.name)
        });
        Ok(Present { shape, workers, warning })
    }

    /// The sizes of the axes on `count` workers, at least one.
    fn shape_on(&self, count: usize) -> Vec<usize> {
        let fixed: usize = self.axes.iter().map(|a| a.size.max(1) as usize).product();
        let rest = (count / fixed.max(1)).max(1);
        let mut shape: Vec<usize> =
            self.axes.iter().map(|a| if a.size == 0 { rest } else { a.size as usize }).collect();
        for i in 0..shape.len() {
            let others: usize = shape.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, n)| n).product();
            if others * shape[i] <= count {
                break;
            }
            shape[i] = (count / others).max(1);
        }
        shape
    }

    /// The layout of a tensor of this shape per mesh axis; none where the planner chooses. Fails if it has no such
    /// dimension.
    pub fn layouts(&self, shape: &Shape) -> Result<Vec<Option<Layout>>> {
        let rank = shape.len() as i64;
        let lay = |lay: &Lay| match *lay {
            Lay::Whole => Ok(Some(Layout::Whole)),
            Lay::Free => Ok(None),
            Lay::Split(axis) => {
                let dim = if axis < 0 { i64::from(axis) + rank } else { i64::from(axis) };
                if dim < 0 || dim >= rank {
                    bail!(Index, "signal {:?}: axis {axis} of a tensor of shape {shape}", self.name);
                }
                Ok(Some(Layout::Split(dim as usize)))
            }
        };
        self.lays.iter().map(lay).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(sizes: &[u32], workers: &[u32]) -> SignalSpec {
        let axes: Vec<_> =
            sizes.iter().enumerate().map(|(i, &size)| MeshAxis { name: i.to_string(), size }).collect();
        let lays = vec![Lay::Split(0); axes.len()];
        SignalSpec { name: "grid".into(), axes, workers: workers.to_vec(), lays, ..SignalSpec::default() }
    }

    fn first(count: u32) -> Vec<u32> {
        (0..count).collect()
    }

    #[test]
    fn workers_keep_their_numbers_when_one_of_them_is_gone() {
        let on = grid(&[0], &[1, 2]).on(&[1, 2]).unwrap();
        assert_eq!((on.workers, on.warning), (vec![1, 2], None));
        let on = grid(&[0], &[]).on(&[0, 2, 3]).unwrap();
        assert_eq!((on.shape, on.workers, on.warning), (vec![3], vec![0, 2, 3], None));
        let on = grid(&[0], &[0, 2]).on(&[1, 2]).unwrap();
        assert_eq!(on.workers, [2]);
        assert!(on.warning.unwrap().contains("workers [0] are not there"));
        let error = grid(&[0], &[1]).on(&[0, 2, 5]).unwrap_err().to_string();
        assert!(error.contains("only workers [0, 2, 5] are connected"), "{error}");
    }

    #[test]
    fn all_there_is_no_warning() {
        let on = grid(&[2, 2], &[0, 1, 2, 3]).on(&first(4)).unwrap();
        assert_eq!((on.shape, on.workers, on.warning), (vec![2, 2], vec![0, 1, 2, 3], None));
        let on = grid(&[0], &[]).on(&first(3)).unwrap();
        assert_eq!((on.shape, on.workers, on.warning), (vec![3], vec![0, 1, 2], None));
    }

    #[test]
    fn what_is_missing_is_left_out_with_a_warning() {
        let on = grid(&[0], &[0, 1, 5]).on(&first(2)).unwrap();
        assert_eq!((on.shape, on.workers), (vec![2], vec![0, 1]));
        assert!(on.warning.unwrap().contains("workers [5] are not there"));
        let shapes = [(1, vec![1, 1]), (2, vec![1, 2]), (3, vec![1, 2]), (4, vec![2, 2]), (9, vec![2, 2])];
        for (count, shape) in shapes {
            let on = grid(&[2, 2], &[]).on(&first(count)).unwrap();
            assert_eq!(on.shape, shape);
            assert_eq!(on.workers.len(), shape.iter().product::<usize>());
            assert_eq!(on.warning.is_some(), count < 4, "{count}");
        }
    }

    #[test]
    fn an_open_axis_takes_what_the_others_leave() {
        assert_eq!(grid(&[0, 2], &[]).on(&first(8)).unwrap().shape, [4, 2]);
        assert_eq!(grid(&[2, 0], &[]).on(&first(7)).unwrap().shape, [2, 3]);
        assert_eq!(grid(&[0, 4], &[]).on(&first(2)).unwrap().shape, [1, 2]);
    }

    #[test]
    fn stages_divide_the_workers_and_share_them_when_they_are_few() {
        let stage = |i, count| {
            let spec = SignalSpec { part: (i, 3), ..grid(&[0], &[]) };
            spec.on(&first(count)).unwrap().workers
        };
        assert_eq!([stage(0, 7), stage(1, 7), stage(2, 7)], [vec![0, 1, 2], vec![3, 4], vec![5, 6]]);
        assert_eq!([stage(0, 2), stage(1, 2), stage(2, 2)], [vec![0], vec![0], vec![1]]);
        assert_eq!([stage(0, 1), stage(2, 1)], [vec![0], vec![0]]);
    }

    #[test]
    fn none_there_is_an_error() {
        let error = grid(&[0], &[4, 5]).on(&first(2)).unwrap_err().to_string();
        assert!(error.contains("none of its workers [4, 5] is there, only workers 0 to 1"), "{error}");
    }

    #[test]
    fn axes_count_from_both_ends() {
        let mut spec = grid(&[2, 2], &[]);
        spec.lays = vec![Lay::Split(-1), Lay::Free];
        let shape = Shape::from([4, 5, 6]);
        assert_eq!(spec.layouts(&shape).unwrap(), [Some(Layout::Split(2)), None]);
        spec.lays = vec![Lay::Split(3), Lay::Whole];
        assert!(spec.layouts(&shape).is_err());
        assert!(SignalSpec::default().check().is_err() && spec.check().is_ok());
    }
}
