//! The meshes a worker belongs to, and its seat in the gang it runs.

use super::Group;
use super::meeting::{self, Seat};
use super::post::{Desk, Letterbox, Post};
use super::ties::{Ties, drop_aside};
use crate::backend::PlanError;
use crate::road::Job;
use crate::table::{Item, SessionTable};
use crate::worker::{Core, State};
use gt_ir::Error;
use gt_net::msg::{Gang, Mesh};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Seats {
    meshes: HashMap<u64, Result<Joined, Error>>,
    /// The gangs that run now, by number, with their meshes: the one that is queued, and those that the device is at.
    current: Vec<(u64, u64, Place)>,
}

/// How this worker meets the others of a mesh.
#[derive(Clone)]
enum Joined {
    /// All are in this process.
    Here(Arc<Mesh>, Arc<Ties>),
    Afar(Arc<Post>),
}

/// A rank's place in a gang.
#[derive(Clone)]
enum Place {
    Here(Arc<Seat>),
    Afar(Arc<Desk>),
}

/// A rank's seat for one program, or why there is none.
#[derive(Clone)]
pub(crate) struct Seated(Result<Place, PlanError>);

impl Seated {
    pub fn group(&self) -> Result<&dyn Group, PlanError> {
        match &self.0 {
            Ok(Place::Here(seat)) => Ok(&**seat),
            Ok(Place::Afar(desk)) => Ok(&**desk),
            Err(error) => Err(error.clone()),
        }
    }

    /// Tells the others that this rank has failed.
    pub fn fail(&self, error: &PlanError) {
        match &self.0 {
            Ok(Place::Here(seat)) => seat.fail(error),
            Ok(Place::Afar(desk)) => desk.fail(error),
            Err(_) => {}
        }
    }
}

impl Seats {
    pub fn join(&mut self, mesh: Mesh, letters: &Arc<Letterbox>) {
        let (id, mesh) = (mesh.id, Arc::new(mesh));
        let own = mesh.members.get(mesh.rank as usize).map(|m| &m.process);
        let here = mesh.members.iter().all(|m| Some(&m.process) == own);
        let joined = match here {
            true => Joined::Here(mesh, Arc::default()),
            false => Joined::Afar(Arc::new(Post::new(mesh, letters.clone()))),
        };
        self.meshes.insert(id, Ok(joined));
    }

    /// A member is gone: the gang that runs fails, and so do those that come.
    pub fn disband(&mut self, mesh: u64, error: Error) {
        let Some(Ok(known)) = self.meshes.insert(mesh, Err(error.clone())) else { return };
        let error = PlanError { instr: None, error };
        for (_, _, place) in self.current.iter().filter(|(_, of, _)| *of == mesh) {
            match place {
                Place::Here(seat) => seat.fail(&error),
                // The others hear it from the dispatcher too.
                Place::Afar(desk) => desk.abandon(&error),
            }
        }
        match known {
            Joined::Here(known, ties) => {
                meeting::forget(known.cluster, mesh);
                drop_aside(ties);
            }
            Joined::Afar(post) => drop_aside(post),
        }
    }

    /// This worker ends: it waits for nobody any more, who could not tell it of their own end.
    pub fn disband_all(&mut self, error: &Error) {
        let known: Vec<u64> =
            self.meshes.iter().filter(|(_, joined)| joined.is_ok()).map(|(id, _)| *id).collect();
        known.into_iter().for_each(|mesh| self.disband(mesh, error.clone()));
    }

    fn sit(&self, gang: Gang) -> Result<Place, PlanError> {
        let unknown = || Error::Runtime(format!("gang {}: mesh {} is not known", gang.number, gang.mesh));
        let joined = self.meshes.get(&gang.mesh).cloned().unwrap_or_else(|| Err(unknown()));
        Ok(match joined.map_err(|error| PlanError { instr: None, error })? {
            Joined::Here(mesh, ties) => {
                let shape: Vec<usize> = mesh.shape.iter().map(|n| *n as usize).collect();
                let name = (mesh.cluster, gang.number);
                let seat = Seat::take(name, mesh.id, &shape, mesh.rank as usize);
                Place::Here(Arc::new(seat.tied(ties)))
            }
            Joined::Afar(post) => Place::Afar(Arc::new(Desk::new(post, gang.number))),
        })
    }
}

impl State {
    /// The gangs of a session that has ended will not run here: other ranks need not wait for them.
    pub fn drop_gangs(&mut self, table: Option<&SessionTable>) -> Vec<Job> {
        let mut jobs = Vec::new();
        for item in table.into_iter().flat_map(|t| &t.queue) {
            let Item::Gang(gang, _) = item else { continue };
            self.gangs.retain(|number| *number != gang.number);
            jobs.push(Job::Excuse(Seated(self.seats.sit(*gang))));
        }
        jobs
    }
}

impl Core {
    /// Takes this worker's seat in a gang that is about to run.
    pub fn sit(&self, gang: Gang) -> Seated {
        let mut state = self.state.lock();
        let seat = state.seats.sit(gang);
        state.seats.current.extend(seat.as_ref().ok().map(|place| (gang.number, gang.mesh, place.clone())));
        Seated(seat)
    }

    /// The gang is queued here as a whole: the next may be.
    pub fn pass(&self, gang: Gang) {
        self.state.lock().gangs.retain(|number| *number != gang.number);
    }

    /// The gang is done here.
    pub fn rise(&self, gang: Gang) {
        let mut state = self.state.lock();
        state.gangs.retain(|number| *number != gang.number);
        let current: Vec<_> =
            state.seats.current.extract_if(.., |(number, ..)| *number == gang.number).collect();
        drop(state);
        drop(current);
    }
}
