//! A bar for things that take long: on a terminal, and only there.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How often the bar is drawn.
const EVERY: Duration = Duration::from_millis(100);
const WIDTH: usize = 30;

/// Something that takes long. Silent unless stderr is a terminal.
pub struct Progress {
    what: String,
    total: f64,
    shows: bool,
    drawn: Option<Instant>,
    began: Instant,
    /// Nothing is drawn before this much time has passed.
    patience: Duration,
}

impl Progress {
    /// Begins; `total` is where `to` ends.
    pub fn new(what: &str, total: f64) -> Progress {
        let shows = std::io::stderr().is_terminal();
        Progress {
            what: what.into(),
            total,
            shows,
            drawn: None,
            began: Instant::now(),
            patience: Duration::ZERO,
        }
    }

    /// The same, drawn only if it turns out to take longer than this.
    pub fn after(what: &str, total: f64, patience: Duration) -> Progress {
        let mut progress = Progress::new(what, total);
        progress.patience = patience;
        progress
    }

    /// So far.
    pub fn to(&mut self, done: f64, note: &str) {
        if self.is_due() {
            let text = self.text(done, note);
            self.draw(&text);
        }
    }

    /// How far it has come, if that is known, and what it is.
    pub fn show(&mut self, part: Option<f64>, what: &str) {
        let took = self.began.elapsed().as_secs_f64();
        match part {
            Some(part) => self.to(part * self.total, what),
            None if self.is_due() => self.draw(&format!("{}: {what}, {took:.0} s", self.what)),
            None => {}
        }
    }

    fn is_due(&self) -> bool {
        let young = self.began.elapsed() < self.patience;
        self.shows && !young && self.drawn.is_none_or(|at| at.elapsed() >= EVERY)
    }

    fn draw(&mut self, text: &str) {
        self.drawn = Some(Instant::now());
        let _ = write!(std::io::stderr(), "\r{text}\x1b[K");
        let _ = std::io::stderr().flush();
    }

    fn text(&self, done: f64, note: &str) -> String {
        let part = if self.total > 0.0 { (done / self.total).clamp(0.0, 1.0) } else { 0.0 };
        let full = (part * WIDTH as f64).round() as usize;
        let bar: String = "━".repeat(full) + &"╌".repeat(WIDTH - full);
        format!("{} {bar} {:>3.0}% {note}", self.what, part * 100.0)
    }

    /// Takes the bar away.
    pub fn end(&mut self) {
        if self.drawn.take().is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}
