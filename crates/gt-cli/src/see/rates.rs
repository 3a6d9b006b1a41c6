//! Rates out of counters: what happened between two snapshots, smoothed so that bars do not jump.

use gt_net::observe::{ClientView, Family, Gauge, Snapshot, WorkerView};
use std::collections::BTreeMap;

/// How fast old values fade, in seconds.
const FADE: f64 = 1.0;

/// A worker as it is shown.
#[derive(Clone, Debug, Default)]
pub struct WorkerRates {
    pub view: WorkerView,
    /// The part of time it was busy, and by family.
    pub busy: f64,
    pub families: [f64; Family::ALL.len()],
    /// Per second.
    pub instructions: f64,
    pub programs: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
}

/// A client as it is shown.
#[derive(Clone, Debug, Default)]
pub struct ClientRates {
    pub view: ClientView,
    /// How many devices' time it had, and the part of what all clients had.
    pub load: f64,
    pub share: f64,
    /// Per second.
    pub instructions: f64,
    pub programs: f64,
}

/// The system as it is shown.
#[derive(Default)]
pub struct Rates {
    last: Option<Snapshot>,
    pub workers: BTreeMap<u32, WorkerRates>,
    pub clients: BTreeMap<u64, ClientRates>,
}

impl Rates {
    /// The newest snapshot.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.last.as_ref()
    }

    /// Takes in the next snapshot.
    pub fn take(&mut self, snapshot: Snapshot) {
        let before = self.last.replace(snapshot.clone()).unwrap_or_default();
        let seconds = snapshot.at_ms.saturating_sub(before.at_ms) as f64 / 1e3;
        self.workers.retain(|id, _| snapshot.workers.iter().any(|w| w.id == *id));
        self.clients.retain(|id, _| snapshot.clients.iter().any(|c| c.id == *id));
        for view in snapshot.workers {
            let old = before.workers.iter().find(|w| w.id == view.id).and_then(|w| w.gauge.as_ref());
            self.workers.entry(view.id).or_default().update(old, view);
        }
        for view in snapshot.clients {
            let old = before.clients.iter().find(|c| c.id == view.id);
            self.clients.entry(view.id).or_default().update(old, view, seconds);
        }
        let all: f64 = self.clients.values().map(|c| c.load).sum();
        for client in self.clients.values_mut() {
            client.share = if all > 1e-6 { client.load / all } else { 0.0 };
        }
    }
}

/// Moves `now` towards what was measured over so many seconds.
fn fade(now: &mut f64, measured: f64, seconds: f64) {
    let keep = (-seconds / FADE).exp();
    *now = *now * keep + measured * (1.0 - keep);
    if *now < 1e-9 {
        *now = 0.0;
    }
}

impl WorkerRates {
    fn update(&mut self, old: Option<&Gauge>, view: WorkerView) {
        if let (Some(old), Some(new)) = (old, &view.gauge)
            && new.now_us > old.now_us
        {
            let seconds = (new.now_us - old.now_us) as f64 / 1e6;
            let per_second = |a: u64, b: u64| b.saturating_sub(a) as f64 / seconds;
            let busy = (per_second(old.busy_us, new.busy_us) / 1e6).min(1.0);
            let mut mix: [f64; Family::ALL.len()] =
                std::array::from_fn(|i| new.families_us[i].saturating_sub(old.families_us[i]) as f64);
            let sum: f64 = mix.iter().sum();
            if sum > 0.0 {
                mix.iter_mut().for_each(|m| *m *= busy / sum);
            } else {
                // Nothing finished: what runs is taken to be of the kind that ran before.
                let known: f64 = self.families.iter().sum();
                mix = self.families.map(|f| if known > 0.0 { f * busy / known } else { 0.0 });
                if known == 0.0 {
                    mix[Family::Other as usize] = busy;
                }
            }
            fade(&mut self.busy, busy, seconds);
            self.families.iter_mut().zip(mix).for_each(|(f, m)| fade(f, m, seconds));
            fade(&mut self.instructions, per_second(old.instructions, new.instructions), seconds);
            fade(&mut self.programs, per_second(old.programs, new.programs), seconds);
            fade(&mut self.bytes_in, per_second(old.bytes_in, new.bytes_in), seconds);
            fade(&mut self.bytes_out, per_second(old.bytes_out, new.bytes_out), seconds);
        }
        self.view = view;
    }
}

impl ClientRates {
    fn update(&mut self, old: Option<&ClientView>, view: ClientView, seconds: f64) {
        if let Some(old) = old.filter(|_| seconds > 0.0) {
            let per_second = |a: u64, b: u64| b.saturating_sub(a) as f64 / seconds;
            fade(&mut self.load, per_second(old.busy_us, view.busy_us) / 1e6, seconds);
            fade(&mut self.instructions, per_second(old.instructions, view.instructions), seconds);
            fade(&mut self.programs, per_second(old.programs, view.programs), seconds);
        }
        self.view = view;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(at_ms: u64, busy_us: u64, client_us: u64) -> Snapshot {
        let mut families_us = [0; Family::ALL.len()];
        families_us[Family::Matmul as usize] = busy_us / 4 * 3;
        families_us[Family::Reduce as usize] = busy_us / 4;
        let gauge = Gauge { now_us: at_ms * 1000, busy_us, families_us, ..Gauge::default() };
        let client = |id, busy_us| ClientView { id, busy_us, ..ClientView::default() };
        Snapshot {
            at_ms,
            workers: vec![WorkerView { id: 0, gauge: Some(gauge), ..WorkerView::default() }],
            clients: vec![client(1, client_us), client(2, busy_us - client_us)],
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_come_near_what_is_measured_and_shares_add_up() {
        let mut rates = Rates::default();
        for i in 0..40 {
            // Half busy; the first client has a fifth of that.
            rates.take(snapshot(i * 250, i * 125_000, i * 25_000));
        }
        let worker = &rates.workers[&0];
        assert!((worker.busy - 0.5).abs() < 0.01, "{}", worker.busy);
        assert!((worker.families[Family::Matmul as usize] - 0.375).abs() < 0.01);
        let shares: Vec<f64> = rates.clients.values().map(|c| c.share).collect();
        assert!((shares[0] - 0.2).abs() < 0.02 && (shares[0] + shares[1] - 1.0).abs() < 1e-6, "{shares:?}");
        for i in 40..80 {
            rates.take(snapshot(i * 250, 5_000_000, 1_000_000));
        }
        assert!(rates.workers[&0].busy < 0.01);
    }
}
