//! A timeline as lanes: clients above, the dispatcher in the middle, workers below. Where events are too many to tell
//! apart, their density is drawn in place of them.

use super::axis;
use super::{Anchor, Canvas, Color, Fonts, family_color};
use crate::see::text::{bytes, count};
use crate::see::timeline::{Kernel, Kind, Lane, Mark, Timeline, Transfer};
use gt_net::observe::Family;
use std::collections::{BTreeSet, HashMap};

const GUTTER: f64 = 168.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const AXIS: f64 = 34.0;
const GAP: f64 = 6.0;
const CLIENT: f64 = 48.0;
const DISPATCHER: f64 = 44.0;
/// Messages drawn one by one at most; beyond, as density.
const MAX_MARKS: usize = 1_500;
const MAX_LINES: usize = 500;
/// Stretches of time that get an arrow each, shared by the workers.
const MAX_ARROWS: usize = 32;
const MAX_NAMED: usize = 10;
/// Smaller transfers get no arrow.
const LARGE: f64 = 16.0 * 1024.0;

const PAPER: Color = Color::rgb(0xFFFFFF);
const LANE: Color = Color::rgb(0xF5F7FA);
const INK: Color = Color::rgb(0x1F2933);
const SOFT: Color = Color::rgb(0x7B8794);
const GRID: Color = Color::rgb(0xE1E6EC);
const INWARD: Color = Color::rgb(0x00897B);
const OUTWARD: Color = Color::rgb(0xEF6C00);
const WORK: Color = Color::rgb(0xC9DCF7);

fn kind_color(kind: Kind) -> Color {
    Color::rgb(match kind {
        Kind::Program => 0x1E66D0,
        Kind::Prefix => 0x7FA9E8,
        Kind::Upload => 0x00897B,
        Kind::Fetch => 0xEF6C00,
        Kind::Update => 0x5E35B1,
        Kind::Free => 0x90A4AE,
        Kind::Sync => 0x546E7A,
        Kind::Compile => 0xF9A825,
        Kind::Move => 0xD81B60,
        Kind::Connect => 0x2E7D32,
        Kind::Disconnect => 0x616161,
        Kind::Error => 0xD50000,
        Kind::Other => 0xBDBDBD,
    })
}

/// Where everything lies.
struct Scene<'a> {
    line: &'a Timeline,
    fonts: &'a Fonts,
    width: f64,
    /// From the top to the first lane, and from there to the axis.
    tops: HashMap<Lane, (f64, f64)>,
    bottom: f64,
}

fn worker_height(line: &Timeline) -> f64 {
    if line.kernels.is_empty() { 62.0 } else { 84.0 }
}

fn lanes(line: &Timeline) -> Vec<(Lane, f64)> {
    let clients = (0..line.clients.len()).map(|i| (Lane::Client(i), CLIENT));
    let workers = (0..line.workers.len()).map(|i| (Lane::Worker(i), worker_height(line)));
    clients.chain([(Lane::Dispatcher, DISPATCHER)]).chain(workers).collect()
}

/// How high a picture is when nobody says.
pub fn height(line: &Timeline, width: f64) -> f64 {
    let rows: f64 = lanes(line).iter().map(|(_, h)| h + GAP).sum();
    TOP + rows + AXIS + legend_height(width)
}

fn legend_height(width: f64) -> f64 {
    if width < 900.0 { 96.0 } else { 62.0 }
}

/// Draws the whole picture.
pub fn draw(line: &Timeline, canvas: &mut dyn Canvas, fonts: &Fonts, width: f64, full: f64) {
    let rows = lanes(line);
    let wanted: f64 = rows.iter().map(|(_, h)| h + GAP).sum();
    // A height that was asked for stretches the lanes, or squeezes them.
    let room = full - TOP - AXIS - legend_height(width);
    let stretch = (room / wanted).max(0.2);
    let mut tops = HashMap::new();
    let mut y = TOP;
    for (lane, h) in rows {
        tops.insert(lane, (y, h * stretch));
        y += (h + GAP) * stretch;
    }
    let scene = Scene { line, fonts, width, tops, bottom: y };
    canvas.rect(0.0, 0.0, width, full, PAPER);
    scene.frame(canvas);
    scene.messages(canvas);
    for worker in 0..line.workers.len() {
        scene.worker(worker, canvas);
    }
    scene.arrows(canvas);
    scene.marks(canvas);
    scene.legend(canvas, y + AXIS);
}

impl Scene<'_> {
    fn x(&self, at: f64) -> f64 {
        let part = (at - self.line.start) / self.line.length();
        GUTTER + part * self.plot()
    }

    fn plot(&self) -> f64 {
        self.width - GUTTER - RIGHT
    }

    /// The middle of a lane.
    fn middle(&self, lane: Lane) -> f64 {
        let (top, height) = self.tops[&lane];
        top + height / 2.0
    }

    /// Title, lanes with their names, and the axis.
    fn frame(&self, canvas: &mut dyn Canvas) {
        let line = self.line;
        canvas.text(16.0, 28.0, 17.0, Anchor::Start, true, INK, "GT timeline");
        let facts = [
            axis::time(line.length()),
            plural(line.clients.len(), "client"),
            plural(line.workers.len(), "worker"),
            format!("{} programs", count(line.spans.len() as f64)),
            format!("{} events", count(line.events as f64)),
        ];
        canvas.text(16.0, 47.0, 11.0, Anchor::Start, false, SOFT, &facts.join("   "));
        for (lane, (top, height)) in &self.tops {
            canvas.rect(0.0, *top, self.width, *height, LANE);
            self.name(*lane, *top, *height, canvas);
        }
        let (per, unit) = axis::unit(line.length());
        let step = axis::step(line.length() * per, (self.plot() / 110.0) as usize);
        let mut at = 0.0;
        while at <= line.length() * per * (1.0 + 1e-9) {
            let x = self.x(line.start + at / per);
            canvas.line((x, TOP - 4.0), (x, self.bottom), 1.0, GRID);
            let text = axis::label(at, step);
            canvas.text(x, self.bottom + 14.0, 10.5, Anchor::Middle, false, SOFT, &text);
            at += step;
        }
        let label = format!("time in {unit}, from {:.3} s on the server's clock", line.start);
        let x = GUTTER + self.plot() / 2.0;
        canvas.text(x, self.bottom + 29.0, 10.5, Anchor::Middle, false, SOFT, &label);
    }

    fn name(&self, lane: Lane, top: f64, height: f64, canvas: &mut dyn Canvas) {
        let line = self.line;
        let (name, below) = match lane {
            Lane::Client(i) => {
                let mine = |m: &&Mark| m.from == lane;
                let programs = line.marks.iter().filter(mine).filter(|m| m.kind == Kind::Program).count();
                let up: f64 =
                    line.marks.iter().filter(mine).filter(|m| m.kind == Kind::Upload).map(|m| m.bytes).sum();
                let up = if up > 0.0 { format!(", {} up", bytes(up)) } else { String::new() };
                (line.clients[i].clone(), format!("{} programs{up}", count(programs as f64)))
            }
            Lane::Dispatcher => {
                let messages = line.marks.iter().filter(|m| m.from != m.to).count();
                ("dispatcher".into(), format!("{} messages", count(messages as f64)))
            }
            Lane::Worker(i) => {
                let spans = line.spans.iter().filter(|s| s.worker == i);
                let (n, busy) = spans.fold((0, 0.0), |(n, sum), s| (n + 1, sum + s.took));
                let busy = (busy / line.length() * 100.0).min(100.0);
                (line.workers[i].clone(), format!("{busy:.0}% busy, {} programs", count(n as f64)))
            }
        };
        let room = GUTTER - 28.0;
        let middle = top + height / 2.0;
        let name = self.fonts.fit(&name, 12.0, true, room).unwrap_or_default();
        canvas.text(16.0, middle - 2.0, 12.0, Anchor::Start, true, INK, &name);
        let below = self.fonts.fit(&below, 9.5, false, room).unwrap_or_default();
        canvas.text(16.0, middle + 12.0, 9.5, Anchor::Start, false, SOFT, &below);
    }

    /// Where the marks of a lane lie.
    fn mark_y(&self, lane: Lane) -> f64 {
        let (top, height) = self.tops[&lane];
        match lane {
            Lane::Worker(_) => top + height * 0.8,
            Lane::Client(_) => top + height * 0.36,
            Lane::Dispatcher => top + height * 0.5,
        }
    }

    /// Unfinished work of clients, lines of messages, and how many the dispatcher has at each moment.
    fn messages(&self, canvas: &mut dyn Canvas) {
        for (client, from, to) in &self.line.unfinished {
            let (top, height) = self.tops[&Lane::Client(*client)];
            let (x, end) = (self.x(*from), self.x(*to));
            canvas.rect(x, top + height * 0.72, (end - x).max(0.5), height * 0.16, WORK);
        }
        let messages: Vec<&Mark> = self.line.marks.iter().filter(|m| m.from != m.to).collect();
        self.density(&messages, Lane::Dispatcher, canvas);
        if messages.len() <= MAX_LINES {
            for m in &messages {
                let x = self.x(m.at);
                let (from, to) = (self.mark_y(m.from), self.mark_y(m.to));
                let color = kind_color(m.kind).with_alpha(0.45);
                canvas.line((x, from), (x, to), 0.9, color);
                let tip = if to > from { -5.0 } else { 5.0 };
                canvas.shape(&[(x, to), (x - 2.6, to + tip), (x + 2.6, to + tip)], color.with_alpha(0.8));
            }
        } else {
            for i in 0..self.line.clients.len() {
                let lane = Lane::Client(i);
                let own: Vec<&Mark> =
                    messages.iter().copied().filter(|m| m.from == lane || m.to == lane).collect();
                self.density(&own, lane, canvas);
            }
        }
    }

    /// Columns as high as there are messages, coloured by kind.
    fn density(&self, marks: &[&Mark], lane: Lane, canvas: &mut dyn Canvas) {
        const STEP: f64 = 3.0;
        let columns = (self.plot() / STEP) as usize + 1;
        let mut kinds: Vec<[u32; Kind::ALL.len()]> = vec![[0; Kind::ALL.len()]; columns];
        for m in marks {
            let column = ((self.x(m.at) - GUTTER) / STEP).max(0.0) as usize;
            kinds[column.min(columns - 1)][m.kind as usize] += 1;
        }
        let most = kinds.iter().map(|k| k.iter().sum::<u32>()).max().unwrap_or(0).max(1) as f64;
        let (top, height) = self.tops[&lane];
        let share = if lane == Lane::Dispatcher { 0.92 } else { 0.6 };
        let floor = if lane == Lane::Dispatcher { top + height } else { top + height * 0.68 };
        for (i, column) in kinds.iter().enumerate() {
            let mut y = floor;
            for kind in Kind::ALL {
                let h = column[kind as usize] as f64 / most * height * share;
                if h > 0.0 {
                    y -= h;
                    let x = GUTTER + i as f64 * STEP;
                    canvas.rect(x, y, STEP - 0.4, h, kind_color(kind).with_alpha(0.75));
                }
            }
        }
    }

    fn worker(&self, worker: usize, canvas: &mut dyn Canvas) {
        let (top, height) = self.tops[&Lane::Worker(worker)];
        let kernels = !self.line.kernels.is_empty();
        let (programs, below) = if kernels { (0.42, 0.24) } else { (0.6, 0.0) };
        let (y, tall) = (top + height * 0.06, height * programs);
        let spans: Vec<Block> = self
            .line
            .spans
            .iter()
            .filter(|s| s.worker == worker)
            .map(|s| Block {
                start: s.start,
                took: s.took,
                parts: &s.families,
                text: Some(format!("#{} {} ops, {}", s.seq, s.ops, axis::time(s.took))),
                failed: s.failed,
            })
            .collect();
        self.blocks(&spans, y, tall, canvas);
        if kernels {
            let parts: Vec<(&Kernel, [(Family, f64); 1])> = self
                .line
                .kernels
                .iter()
                .filter(|k| k.worker == worker)
                .map(|k| (k, [(k.family, 1.0)]))
                .collect();
            let blocks: Vec<Block> = parts
                .iter()
                .map(|(k, parts)| Block {
                    start: k.start,
                    took: k.took,
                    parts,
                    text: Some(k.name.to_string()),
                    failed: false,
                })
                .collect();
            self.blocks(&blocks, y + tall + height * 0.04, height * below, canvas);
        }
        self.transfers(worker, top + height * 0.86, height * 0.12, canvas);
    }

    /// Boxes with their text where they are wide enough, columns of what was busy where they are not.
    fn blocks(&self, blocks: &[Block], y: f64, height: f64, canvas: &mut dyn Canvas) {
        let dense = blocks.len() as f64 > self.plot() / 3.0;
        if dense {
            return self.columns(blocks, y, height, canvas);
        }
        for block in blocks {
            let (x, end) = (self.x(block.start), self.x(block.start + block.took));
            let width = (end - x).max(0.8);
            let mut left = x;
            let sum: f64 = block.parts.iter().map(|(_, p)| p).sum();
            for (family, part) in block.parts {
                let w = width * part / sum.max(1e-9);
                canvas.rect(left, y, w, height, family_color(*family));
                left += w;
            }
            if block.parts.is_empty() {
                canvas.rect(x, y, width, height, family_color(Family::Other));
            }
            if block.failed {
                canvas.rect(x, y, width, 3.0, kind_color(Kind::Error));
            }
            let size = 9.5f64.min(height * 0.6);
            let text = block.text.as_deref().filter(|_| width > 30.0);
            if let Some(text) = text.and_then(|t| self.fonts.fit(t, size, false, width - 8.0)) {
                let middle = y + height / 2.0 + size * 0.36;
                let ink = text_color(block.parts);
                canvas.text(x + 4.0, middle, size, Anchor::Start, false, ink, &text);
            }
        }
    }

    fn columns(&self, blocks: &[Block], y: f64, height: f64, canvas: &mut dyn Canvas) {
        const STEP: f64 = 1.0;
        let columns = (self.plot() / STEP) as usize + 1;
        let mut busy: Vec<[f64; Family::ALL.len()]> = vec![[0.0; Family::ALL.len()]; columns];
        let per_column = self.line.length() / self.plot() * STEP;
        for block in blocks {
            let sum: f64 = block.parts.iter().map(|(_, p)| p).sum::<f64>().max(1e-9);
            let from = ((block.start - self.line.start) / per_column).max(0.0);
            let to = from + block.took / per_column;
            let (first, last) = (from as usize, (to as usize).min(columns - 1));
            for (i, column) in busy.iter_mut().enumerate().take(last + 1).skip(first) {
                let covered = (to.min(i as f64 + 1.0) - from.max(i as f64)).max(0.0);
                for (family, part) in block.parts {
                    column[*family as usize] += covered * part / sum;
                }
            }
        }
        for (i, column) in busy.iter().enumerate() {
            let sum: f64 = column.iter().sum();
            let scale = if sum > 1.0 { 1.0 / sum } else { 1.0 };
            let mut floor = y + height;
            for family in Family::ALL {
                let h = column[family as usize] * scale * height;
                if h > 0.01 {
                    floor -= h;
                    canvas.rect(GUTTER + i as f64 * STEP, floor, STEP, h, family_color(family));
                }
            }
        }
    }

    fn transfers(&self, worker: usize, y: f64, height: f64, canvas: &mut dyn Canvas) {
        for t in self.line.transfers.iter().filter(|t| t.worker == worker) {
            let (x, end) = (self.x(t.start), self.x(t.start + t.took));
            let high = height * (0.25 + 0.75 * (log_size(t.bytes) / 30.0).min(1.0));
            let color = if t.inward { INWARD } else { OUTWARD };
            canvas.rect(x, y + height - high, (end - x).max(1.2), high, color.with_alpha(0.85));
        }
    }

    /// The largest transfers, from where they come to where they go; where there are many, the largest of each stretch
    /// of time.
    fn arrows(&self, canvas: &mut dyn Canvas) {
        let large = self.line.transfers.iter().filter(|t| t.other.is_some() && t.bytes >= LARGE);
        let stretches = (MAX_ARROWS / self.line.workers.len().max(1)).max(3) as f64;
        let mut best: HashMap<(usize, usize, bool), &Transfer> = HashMap::new();
        for t in large {
            let stretch = ((self.x(t.start) - GUTTER) / self.plot() * stretches) as usize;
            let best = best.entry((stretch, t.worker, t.inward)).or_insert(t);
            if t.bytes > best.bytes {
                *best = t;
            }
        }
        let mut shown: Vec<&Transfer> = best.into_values().collect();
        shown.sort_by(|a, b| b.bytes.total_cmp(&a.bytes).then(a.start.total_cmp(&b.start)));
        let mut named: Vec<(f64, f64)> = Vec::new();
        for t in shown {
            let Some(other) = t.other else { continue };
            let own = Lane::Worker(t.worker);
            let (from, to) = if t.inward { (other, own) } else { (own, other) };
            let (x1, y1) = (self.x(t.start), self.mark_y(from));
            let (x2, y2) = (self.x(t.start + t.took).max(x1 + 3.0), self.mark_y(to));
            let color = if t.inward { INWARD } else { OUTWARD };
            let thick = 0.8 + log_size(t.bytes / LARGE) / 8.0;
            canvas.line((x1, y1), (x2, y2), thick, color.with_alpha(0.6));
            let (dx, dy) = (x2 - x1, y2 - y1);
            let long = (dx * dx + dy * dy).sqrt().max(1e-6);
            let (ux, uy) = (dx / long, dy / long);
            let size = 5.0 + thick;
            let (bx, by) = (x2 - ux * size, y2 - uy * size);
            let half = size * 0.45;
            canvas.shape(
                &[(x2, y2), (bx - uy * half, by + ux * half), (bx + uy * half, by - ux * half)],
                color,
            );
            let (x, y) = (x1 + dx * 0.5, self.middle(Lane::Dispatcher) - 8.0);
            let free = named.iter().all(|(nx, ny)| (x - nx).abs() > 70.0 || (y - ny).abs() > 12.0);
            if free && named.len() < MAX_NAMED {
                named.push((x, y));
                let late = x > self.width - RIGHT - 60.0;
                let (x, anchor) = if late { (x - 5.0, Anchor::End) } else { (x + 5.0, Anchor::Start) };
                canvas.text(x, y, 9.0, anchor, true, color, &bytes(t.bytes));
            }
        }
    }

    /// The shapes of single events.
    fn marks(&self, canvas: &mut dyn Canvas) {
        let many = self.line.marks.len() > MAX_MARKS;
        let mut last: HashMap<(Lane, Kind), f64> = HashMap::new();
        for m in &self.line.marks {
            let rare =
                matches!(m.kind, Kind::Error | Kind::Compile | Kind::Connect | Kind::Disconnect | Kind::Move);
            if many && !rare {
                continue;
            }
            let lane = if m.from == Lane::Dispatcher { m.to } else { m.from };
            let x = self.x(m.at);
            // Of equal marks that would cover each other, one is enough.
            let near = last.get(&(lane, m.kind)).is_some_and(|before| x - before < 2.5);
            if near && m.kind != Kind::Error {
                continue;
            }
            last.insert((lane, m.kind), x);
            // Others that lie there already push it aside.
            let crowd =
                last.iter().filter(|((l, k), at)| *l == lane && *k != m.kind && x - **at < 6.0).count();
            let aside = [0.0, -8.5, 8.5][crowd % 3];
            let size = 3.4 + log_size(m.bytes) / 7.0;
            draw_kind(m.kind, x, self.mark_y(lane) + aside, size, canvas);
        }
    }

    fn legend(&self, canvas: &mut dyn Canvas, top: f64) {
        let line = self.line;
        let families: BTreeSet<Family> = line
            .spans
            .iter()
            .flat_map(|s| s.families.iter().map(|(f, _)| *f))
            .chain(line.kernels.iter().map(|k| k.family))
            .collect();
        let kinds: BTreeSet<Kind> = line.marks.iter().map(|m| m.kind).collect();
        let (mut x, mut y) = (16.0, top + 14.0);
        let mut item = |draw: &mut dyn FnMut(&mut dyn Canvas, f64, f64), text: &str| {
            let width = 22.0 + self.fonts.width(text, 10.0, false) + 14.0;
            if x + width > self.width - 8.0 {
                (x, y) = (16.0, y + 20.0);
            }
            draw(canvas, x, y);
            canvas.text(x + 18.0, y + 3.5, 10.0, Anchor::Start, false, INK, text);
            x += width;
        };
        for family in families {
            item(&mut |c, x, y| c.rect(x, y - 5.0, 12.0, 10.0, family_color(family)), family.text());
        }
        for (color, text) in [(INWARD, "to worker"), (OUTWARD, "from worker")] {
            if line.transfers.iter().any(|t| t.inward == (color == INWARD)) {
                item(&mut |c, x, y| c.rect(x, y - 2.0, 12.0, 5.0, color), text);
            }
        }
        if !line.unfinished.is_empty() {
            item(&mut |c, x, y| c.rect(x, y - 3.0, 12.0, 6.0, WORK), "work unfinished");
        }
        for kind in kinds {
            item(&mut |c, x, y| draw_kind(kind, x + 6.0, y, 4.6, c), kind.text());
        }
        item(&mut |_, _, _| {}, "marks grow with bytes");
    }
}

/// Something with a length on a worker.
struct Block<'a> {
    start: f64,
    took: f64,
    parts: &'a [(Family, f64)],
    text: Option<String>,
    failed: bool,
}

/// Dark text on light colours, white on others.
fn text_color(parts: &[(Family, f64)]) -> Color {
    let first = parts.first().map_or(Family::Other, |(f, _)| *f);
    let Color(r, g, b, _) = family_color(first);
    let light = 0.299 * r as f64 + 0.587 * g as f64 + 0.114 * b as f64;
    if light > 150.0 { INK } else { PAPER }
}

fn log_size(bytes: f64) -> f64 {
    (bytes + 1.0).log2()
}

/// Every kind has a shape of its own.
fn draw_kind(kind: Kind, x: f64, y: f64, s: f64, canvas: &mut dyn Canvas) {
    let color = kind_color(kind);
    match kind {
        Kind::Program => canvas.shape(&[(x - s * 0.7, y - s), (x + s, y), (x - s * 0.7, y + s)], color),
        Kind::Prefix => {
            canvas.shape(&[(x - s * 0.5, y - s * 0.7), (x + s * 0.7, y), (x - s * 0.5, y + s * 0.7)], color)
        }
        Kind::Upload => canvas.shape(&[(x, y - s), (x + s, y + s * 0.8), (x - s, y + s * 0.8)], color),
        Kind::Fetch => canvas.shape(&[(x, y + s), (x + s, y - s * 0.8), (x - s, y - s * 0.8)], color),
        Kind::Update => canvas.circle(x, y, s * 0.85, color),
        Kind::Free => canvas.rect(x - s * 0.6, y - s * 0.6, s * 1.2, s * 1.2, color),
        Kind::Sync => canvas.rect(x - 1.2, y - s, 2.4, 2.0 * s, color),
        Kind::Compile => canvas.shape(&[(x, y - s * 1.2), (x + s, y), (x, y + s * 1.2), (x - s, y)], color),
        Kind::Move => {
            let corner = |i: u32| {
                let a = std::f64::consts::PI / 3.0 * i as f64;
                (x + s * a.cos(), y + s * a.sin())
            };
            canvas.shape(&std::array::from_fn::<_, 6, _>(|i| corner(i as u32)), color)
        }
        Kind::Connect => canvas.shape(
            &[
                (x, y - s),
                (x + s, y - s * 0.2),
                (x + s * 0.6, y + s),
                (x - s * 0.6, y + s),
                (x - s, y - s * 0.2),
            ],
            color,
        ),
        Kind::Disconnect | Kind::Error => {
            let s = if kind == Kind::Error { s * 1.2 } else { s };
            canvas.line((x - s, y - s), (x + s, y + s), 2.2, color);
            canvas.line((x - s, y + s), (x + s, y - s), 2.2, color);
        }
        Kind::Other => canvas.circle(x, y, s * 0.5, color),
    }
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
