//! `gt top`: a full-screen monitor of workers and clients.

mod view;

use super::find::Where;
use super::observer::{Observer, Seen};
use super::rates::{ClientRates, Rates};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use gt_ir::{Error, Result};
use gt_net::observe::Detail;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: Where,
    /// Milliseconds between updates.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(100..=60_000))]
    interval: u32,
    /// Print one picture as text and end, for logs and scripts.
    #[arg(long)]
    once: bool,
}

/// How long what the server says may wait while no key is pressed.
const LOOK: Duration = Duration::from_millis(100);

/// What the table of clients is sorted by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sort {
    Share,
    Time,
    Memory,
    Waiting,
    Name,
}

impl Sort {
    const ALL: [Sort; 5] = [Sort::Share, Sort::Time, Sort::Memory, Sort::Waiting, Sort::Name];

    pub fn text(self) -> &'static str {
        match self {
            Sort::Share => "share",
            Sort::Time => "gpu time",
            Sort::Memory => "memory",
            Sort::Waiting => "waiting",
            Sort::Name => "name",
        }
    }
}

/// Which list the arrow keys move in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pane {
    Workers,
    Clients,
}

/// All that is shown.
pub struct Top {
    pub rates: Rates,
    pub address: String,
    pub sort: Sort,
    pub paused: bool,
    pub pane: Pane,
    /// The worker or client that is picked, by its number.
    pub worker: Option<u32>,
    pub client: Option<u64>,
    /// Why there is nothing to see.
    pub lost: Option<String>,
    pub help: bool,
}

impl Top {
    pub fn new(address: String) -> Top {
        Top {
            rates: Rates::default(),
            address,
            sort: Sort::Share,
            paused: false,
            pane: Pane::Clients,
            worker: None,
            client: None,
            lost: None,
            help: false,
        }
    }

    /// The clients in their order, those of the picked worker if one is picked.
    pub fn clients(&self) -> Vec<&ClientRates> {
        let on = |c: &&ClientRates| match self.worker.and_then(|id| self.rates.workers.get(&id)) {
            Some(worker) => {
                let used = worker.view.gauge.iter().flat_map(|g| &g.sessions);
                c.view.home == Some(worker.view.id) || used.into_iter().any(|u| u.session == c.view.id)
            }
            None => true,
        };
        let mut clients: Vec<&ClientRates> = self.rates.clients.values().filter(on).collect();
        clients.sort_by(|a, b| {
            let number = |x: f64, y: f64| y.total_cmp(&x);
            let order = match self.sort {
                Sort::Share => number(a.load, b.load),
                Sort::Time => b.view.busy_us.cmp(&a.view.busy_us),
                Sort::Memory => b.view.bytes.cmp(&a.view.bytes),
                Sort::Waiting => b.view.waiting_ms.cmp(&a.view.waiting_ms),
                Sort::Name => a.view.name.cmp(&b.view.name),
            };
            order.then(a.view.id.cmp(&b.view.id))
        });
        clients
    }

    /// Takes a key; false ends the program.
    fn key(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Char('c') if control => return false,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('s') => {
                let at = Sort::ALL.iter().position(|s| *s == self.sort).unwrap_or(0);
                self.sort = Sort::ALL[(at + 1) % Sort::ALL.len()];
            }
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Tab | KeyCode::Left | KeyCode::Right => {
                self.pane = if self.pane == Pane::Workers { Pane::Clients } else { Pane::Workers };
            }
            KeyCode::Up | KeyCode::Char('k') => self.pick(-1),
            KeyCode::Down | KeyCode::Char('j') => self.pick(1),
            KeyCode::Esc => (self.worker, self.client, self.help) = (None, None, false),
            _ => {}
        }
        true
    }

    fn pick(&mut self, step: isize) {
        match self.pane {
            Pane::Workers => {
                let ids: Vec<u32> = self.rates.workers.keys().copied().collect();
                self.worker = next(&ids, self.worker, step);
            }
            Pane::Clients => {
                let ids: Vec<u64> = self.clients().iter().map(|c| c.view.id).collect();
                self.client = next(&ids, self.client, step);
            }
        }
    }
}

/// The one before or after the picked one; none before the first.
fn next<T: Copy + PartialEq>(ids: &[T], now: Option<T>, step: isize) -> Option<T> {
    let at = now.and_then(|id| ids.iter().position(|x| *x == id)).map_or(-1, |i| i as isize);
    let to = at + step;
    if to < 0 { None } else { ids.get((to as usize).min(ids.len().saturating_sub(1))).copied() }
}

pub fn run(args: Args) -> Result<i32> {
    let (addr, token) = (args.at.addr()?, args.at.token()?);
    super::give_way();
    let observer = Observer::connect(&addr, token.clone(), Detail::Counters, args.interval)?;
    let mut top = Top::new(addr.to_string());
    if args.once || !std::io::stdout().is_terminal() {
        return once(&mut top, &observer);
    }
    let mut terminal = ratatui::try_init().map_err(|e| Error::Runtime(format!("top: no terminal: {e}")))?;
    let done = live(&mut top, observer, token, args.interval, &mut terminal);
    ratatui::restore();
    done.map(|_| 0)
}

/// Prints one picture, made of a second of looking.
fn once(top: &mut Top, observer: &Observer) -> Result<i32> {
    let until = Instant::now() + Duration::from_millis(2_500);
    let mut seen = 0;
    while seen < 3 && Instant::now() < until {
        match observer.next(Duration::from_millis(100)) {
            Some(Seen::Snapshot(snapshot)) => {
                top.rates.take(*snapshot);
                seen += 1;
            }
            Some(Seen::Lost(why)) => return Err(Error::Connection(why)),
            Some(Seen::Lines(_)) | None => {}
        }
    }
    let width = std::env::var("COLUMNS").ok().and_then(|v| v.parse().ok()).unwrap_or(100);
    print!("{}", view::as_text(top, width, 30));
    Ok(0)
}

fn live(
    top: &mut Top,
    mut observer: Observer,
    token: Option<String>,
    interval: u32,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<()> {
    let failed = |e: std::io::Error| Error::Runtime(format!("top: {e}"));
    let mut retry = Instant::now();
    let mut news = true;
    loop {
        // A picture that is the same costs as much as another.
        if std::mem::take(&mut news) {
            terminal.draw(|frame| view::draw(top, frame)).map_err(failed)?;
        }
        // Keys come at once; what the server says waits for at most this long.
        if event::poll(LOOK).map_err(failed)? {
            news = true;
            match event::read().map_err(failed)? {
                Event::Key(key) if key.kind != KeyEventKind::Release && !top.key(key) => return Ok(()),
                _ => {}
            }
        }
        while let Some(seen) = observer.next(Duration::ZERO) {
            match seen {
                Seen::Snapshot(snapshot) if !top.paused => {
                    top.rates.take(*snapshot);
                    news = true;
                }
                Seen::Snapshot(_) | Seen::Lines(_) => {}
                Seen::Lost(why) => {
                    news |= top.lost.is_none();
                    top.lost = Some(why);
                    break;
                }
            }
        }
        if top.lost.is_some() && retry.elapsed() > Duration::from_secs(1) {
            retry = Instant::now();
            let addr = observer.addr.clone();
            if let Ok(again) = Observer::connect(&addr, token.clone(), Detail::Counters, interval) {
                observer = again;
                (top.rates, top.lost) = (Rates::default(), None);
                news = true;
            }
        }
    }
}
