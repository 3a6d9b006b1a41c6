//! The meshes a worker belongs to, and its seat in the gang it runs.

use super::Group;
use super::meeting::{self, Seat};
use crate::backend::PlanError;
use crate::table::{Item, SessionTable};
use crate::worker::{Core, State};
use gt_ir::Error;
use gt_net::msg::{Gang, Mesh};
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct Seats {
    meshes: HashMap<u64, Result<Arc<Mesh>, Error>>,
    /// The gang that runs now, with its mesh.
    current: Option<(u64, Arc<Seat>)>,
}

/// A rank's seat for one program, or why there is none.
pub(crate) struct Seated(Result<Arc<Seat>, PlanError>);

impl Seated {
    pub fn group(&self) -> Result<&dyn Group, PlanError> {
        self.0.as_ref().map(|seat| &**seat as &dyn Group).map_err(Clone::clone)
    }

    /// Tells the others that this rank has failed.
    pub fn fail(&self, error: &PlanError) {
        if let Ok(seat) = &self.0 {
            seat.fail(error);
        }
    }
}

impl Seats {
    pub fn join(&mut self, mesh: Mesh) {
        self.meshes.insert(mesh.id, Ok(Arc::new(mesh)));
    }

    /// A member is gone: the gang that runs fails, and so do those that come.
    pub fn disband(&mut self, mesh: u64, error: Error) {
        let Some(Ok(known)) = self.meshes.insert(mesh, Err(error.clone())) else { return };
        if let Some((of, seat)) = &self.current
            && *of == mesh
        {
            seat.fail(&PlanError { instr: None, error });
        }
        meeting::forget(known.cluster, mesh);
    }

    fn sit(&self, gang: Gang) -> Result<Arc<Seat>, PlanError> {
        let unknown = || Error::Runtime(format!("gang {}: mesh {} is not known", gang.number, gang.mesh));
        let mesh = self.meshes.get(&gang.mesh).cloned().unwrap_or_else(|| Err(unknown()));
        let mesh = mesh.map_err(|error| PlanError { instr: None, error })?;
        let shape: Vec<usize> = mesh.shape.iter().map(|n| *n as usize).collect();
        let name = (mesh.cluster, gang.number);
        Ok(Arc::new(Seat::take(name, mesh.id, &shape, mesh.rank as usize)))
    }
}

impl State {
    /// The gangs of a session that has ended will not run here: other ranks need not wait.
    pub fn drop_gangs(&mut self, table: Option<&SessionTable>) {
        for item in table.into_iter().flat_map(|t| &t.queue) {
            let Item::Gang(gang, _) = item else { continue };
            self.gangs.retain(|number| *number != gang.number);
            let error = Error::Runtime("the session has ended".into());
            Seated(self.seats.sit(*gang)).fail(&PlanError { instr: None, error });
        }
    }
}

impl Core {
    /// Takes this worker's seat in a gang that is about to run.
    pub fn sit(&self, gang: Gang) -> Seated {
        let mut state = self.state.lock();
        let seat = state.seats.sit(gang);
        state.seats.current = seat.as_ref().ok().map(|seat| (gang.mesh, seat.clone()));
        Seated(seat)
    }

    /// The gang is done here.
    pub fn rise(&self, gang: Gang) {
        let mut state = self.state.lock();
        state.gangs.retain(|number| *number != gang.number);
        let current = state.seats.current.take();
        drop(state);
        drop(current);
    }
}
