//! Waiting for what arrives, and for credit (C2).

use super::inbox::Inbox;
use super::outbox::Unfinished;
use super::{Session, closed};
use crate::wait::Waiting;
use gt_ir::Result;
use gt_net::spin;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// At most this many bytes of results may be unfinished before recording waits.
const CREDIT_BYTES: u64 = 4 << 30;

impl Session {
    /// What a wait is for.
    pub(super) fn waiting(&self) -> Waiting {
        if self.link.is_cut_off() {
            return Waiting { what: format!("waiting for the server at {}", self.link.peer()), part: None };
        }
        if let Some((come, total, what)) = self.link.transfer() {
            let part = Some(come as f64 / total.max(1) as f64);
            return Waiting { what: format!("{what} {:.1} MB", total as f64 / 1048576.0), part };
        }
        let completed = self.shared.inbox.lock().completed;
        let Some(outbox) = self.outbox.try_lock() else {
            return Waiting { what: "working".into(), part: None };
        };
        let open: Vec<&Unfinished> = outbox.unfinished.iter().filter(|u| u.seq > completed).collect();
        let what = match open.first() {
            Some(_) if completed == 0 && self.welcome.workers == 0 => {
                "waiting for a worker to connect".into()
            }
            Some(first) if first.new => format!("first run of {} instructions (compiling)", first.instrs),
            Some(_) => format!("{} programs to go", open.len()),
            None => "waiting for the server".into(),
        };
        Waiting { what, part: None }
    }

    /// Waits while too many programs or bytes are unfinished. Called after a program was sent, with no lock held.
    pub(crate) fn wait_for_credit(&self) -> Result<()> {
        let limit = self.welcome.credit_programs.max(1);
        let (sent, bytes, behind) = {
            let mut outbox = self.outbox.lock();
            let completed = self.shared.inbox.lock().completed;
            outbox.retire(completed, self.shared.failed.load(Ordering::Relaxed));
            (outbox.seq, outbox.bytes, outbox.behind().filter(|seq| *seq > completed))
        };
        if bytes > CREDIT_BYTES {
            return self.catch_up_all();
        }
        if let Some(seq) = behind {
            self.ask_for(seq)?;
        }
        let least = behind.unwrap_or(0).max((sent + 1).saturating_sub(limit));
        self.wait(|inbox| {
            let credit = inbox.completed >= least && !self.link.is_behind();
            (credit || !inbox.failures.is_empty()).then_some(())
        })
    }

    /// Waits for what was put off while something was not to be broken.
    pub(crate) fn catch_up(&self) -> Result<()> {
        if self.settings.sync { self.catch_up_all() } else { self.wait_for_credit() }
    }

    pub(super) fn wait<T: Send>(&self, ready: impl FnMut(&mut Inbox) -> Option<T> + Send) -> Result<T> {
        self.wait_how(ready, true)
    }

    /// Waits for something to arrive. `control` says that it comes inside a message, so that this thread may read it
    /// from the connection itself.
    pub(super) fn wait_how<T: Send>(
        &self,
        mut ready: impl FnMut(&mut Inbox) -> Option<T> + Send,
        control: bool,
    ) -> Result<T> {
        let mut out = None;
        let mut fatal = None;
        let mut look = |inbox: &mut Inbox| {
            out = ready(inbox);
            if out.is_none() {
                fatal.clone_from(&inbox.fatal);
            }
            out.is_some() || fatal.is_some()
        };
        let mut found = look(&mut self.shared.inbox.lock());
        let (start, drives) = (Instant::now(), self.link.drives());
        let mut seen = self.shared.arrivals.load(Ordering::Acquire);
        let mut come = |look: &mut dyn FnMut(&mut Inbox) -> bool| {
            let now = self.shared.arrivals.load(Ordering::Acquire);
            now != std::mem::replace(&mut seen, now) && look(&mut self.shared.inbox.lock())
        };
        if !found && !drives {
            found = spin::within(self.shared.habit.awake_a_moment().min(spin::MOMENT), || come(&mut look));
        }
        if !found {
            let mut attempt = |patience: Duration| {
                let deadline = Instant::now() + patience;
                let awake = self.shared.habit.awake().saturating_sub(start.elapsed());
                if !drives && !awake.is_zero() && spin::within(awake, || come(&mut look)) {
                    return true;
                }
                if control {
                    let mut done = || look(&mut self.shared.inbox.lock());
                    if let Some(done) = self.link.drive(deadline, &mut done) {
                        return done;
                    }
                }
                let mut inbox = self.shared.inbox.lock();
                loop {
                    if look(&mut inbox) {
                        return true;
                    }
                    if self.shared.arrived.wait_until(&mut inbox, deadline).timed_out() {
                        return false;
                    }
                }
            };
            crate::wait::block_on(&mut attempt, &|| self.waiting())?;
        }
        self.shared.habit.took(start.elapsed());
        match (out, fatal) {
            (Some(out), _) => Ok(out),
            (None, Some(error)) => {
                self.shared.inbox.lock().told = true;
                Err(error)
            }
            (None, None) => Err(closed()),
        }
    }
}
