//! What `gt top` looks like.

use super::{Pane, Sort, Top};
use crate::see::rates::{ClientRates, WorkerRates};
use crate::see::text::{bytes, count, seconds};
use gt_net::observe::{Family, Gauge};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Cell, Clear, Paragraph, Row, Table, Widget};

/// Columns of a worker's name.
const NAME: u16 = 14;
/// A worker takes this many lines.
const TALL: u16 = 2;

/// The colour of a family, told apart by people who see few colours by its place in the legend too.
pub fn color(family: Family) -> Color {
    match family {
        Family::Matmul => Color::Rgb(66, 133, 244),
        Family::Attention => Color::Rgb(171, 71, 188),
        Family::Elementwise => Color::Rgb(67, 160, 71),
        Family::Reduce => Color::Rgb(251, 192, 45),
        Family::Move => Color::Rgb(0, 172, 193),
        Family::Index => Color::Rgb(141, 110, 99),
        Family::Random => Color::Rgb(240, 98, 146),
        Family::Optimizer => Color::Rgb(255, 112, 67),
        Family::Collective => Color::Rgb(229, 57, 53),
        Family::Other => Color::Rgb(158, 158, 158),
    }
}

/// Draws one picture of the system.
pub fn draw(top: &Top, frame: &mut Frame) {
    let area = frame.area();
    render(top, area, frame.buffer_mut());
}

/// The same as lines of text without colours.
pub fn as_text(top: &Top, width: u16, height: u16) -> String {
    let area = Rect::new(0, 0, width.max(40), height);
    let mut buffer = Buffer::empty(area);
    render(top, area, &mut buffer);
    let line = |y| {
        let text: String = (0..area.width).map(|x| buffer[(x, y)].symbol()).collect();
        format!("{}\n", text.trim_end())
    };
    (0..area.height).map(line).collect()
}

fn render(top: &Top, area: Rect, buffer: &mut Buffer) {
    let workers = top.rates.workers.len() as u16 * TALL + 2;
    let detail: u16 = if top.client.is_some() || top.worker.is_some() { 6 } else { 0 };
    // The table of clients keeps room for a few of them.
    let most = area.height.saturating_sub(2 + 1 + 6 + detail).max(4);
    let rows = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(workers.clamp(3, most)),
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(detail),
        Constraint::Length(1),
    ]);
    let [head, upper, legend, lower, picked, foot] = rows.areas(area);
    header(top, head, buffer);
    draw_workers(top, upper, buffer);
    draw_legend(top, legend, buffer);
    draw_clients(top, lower, buffer);
    if detail > 0 {
        draw_picked(top, picked, buffer);
    }
    footer(top, foot, buffer);
    if top.help {
        draw_help(area, buffer);
    }
}

fn header(top: &Top, area: Rect, buffer: &mut Buffer) {
    let mut spans = vec![" GT top ".bold().reversed()];
    if top.paused {
        spans.push(" PAUSED ".black().on_yellow());
    }
    spans.push(format!(" {} ", top.address).into());
    if let Some(s) = top.rates.snapshot() {
        let ops: f64 = top.rates.workers.values().map(|w| w.instructions).sum();
        let busy: f64 = top.rates.workers.values().map(|w| w.busy).sum();
        let parts = [
            format!("up {}", seconds(s.at_ms as f64 / 1e3)),
            plural(top.rates.workers.len(), "worker"),
            plural(top.rates.clients.len(), "client"),
            format!("{} ops/s", count(ops)),
            format!("{:.0}% busy", 100.0 * busy / top.rates.workers.len().max(1) as f64),
        ];
        spans.push(format!("| {}", parts.join(" | ")).into());
    }
    Line::from(spans).render(area, buffer);
}

fn plural(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn block(title: String, active: bool) -> Block<'static> {
    let style = if active { Style::new().fg(Color::Cyan) } else { Style::new().fg(Color::DarkGray) };
    Block::bordered().border_type(BorderType::Rounded).border_style(style).title(title.bold())
}

fn draw_workers(top: &Top, area: Rect, buffer: &mut Buffer) {
    let frame = block(" workers ".into(), top.pane == Pane::Workers);
    let inner = frame.inner(area);
    frame.render(area, buffer);
    if let Some(why) = &top.lost {
        let text = format!("the server is gone ({why}): looking for it");
        return Line::from(text.red()).render(inner, buffer);
    }
    if top.rates.workers.is_empty() {
        let text = match top.rates.snapshot() {
            Some(_) => "no workers are connected: start one with `gt worker`",
            None => "waiting for the server's first answer",
        };
        return Line::from(text.dim()).render(inner, buffer);
    }
    if inner.height == 0 {
        return;
    }
    let room = (inner.height / TALL).max(1) as usize;
    let at = top.worker.and_then(|id| top.rates.workers.keys().position(|w| *w == id)).unwrap_or(0);
    let first = at.saturating_sub(room - 1);
    for (i, worker) in top.rates.workers.values().skip(first).take(room).enumerate() {
        let y = inner.y + i as u16 * TALL;
        let height = TALL.min(inner.bottom().saturating_sub(y));
        let area = Rect { y, height, ..inner };
        draw_worker(worker, top.worker == Some(worker.view.id), area, buffer);
    }
    let hidden = top.rates.workers.len().saturating_sub(first + room);
    if hidden > 0 {
        let text = format!(" {hidden} more below ");
        let x = area.right().saturating_sub(text.len() as u16 + 2);
        buffer.set_string(x, area.bottom() - 1, text, Style::new().dim());
    }
}

fn draw_worker(worker: &WorkerRates, picked: bool, area: Rect, buffer: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    let style = if picked { Style::new().reversed() } else { Style::new().bold() };
    let name = cut(&worker.view.name, NAME as usize - 1);
    buffer.set_string(area.x, area.y, name, style);
    let percent = format!("{:>4.0}%", worker.busy * 100.0);
    let bar = Rect { x: area.x + NAME, width: area.width.saturating_sub(NAME + 6), height: 1, ..area };
    draw_bar(&worker.families, bar, buffer);
    buffer.set_string(bar.right() + 1, area.y, percent, Style::new().bold());
    if area.height < 2 {
        return;
    }
    let Some(g) = &worker.view.gauge else {
        return buffer.set_string(area.x + NAME, area.y + 1, "no answer yet", Style::new().dim());
    };
    let mut parts = vec![
        format!("{} ops/s", count(worker.instructions)),
        format!("{} gpu", seconds(g.busy_us as f64 / 1e6)),
        memory_text(g, area.width >= 100),
        format!("queue {}", g.queued),
        format!("↓{}/s ↑{}/s", bytes(worker.bytes_in), bytes(worker.bytes_out)),
    ];
    let room = area.width.saturating_sub(NAME) as usize;
    let device = format!("{} {}", worker.view.backend, worker.view.device);
    if parts.iter().map(|p| p.len() + 3).sum::<usize>() + device.len() <= room {
        parts.push(device);
    }
    let text = cut(&parts.join(" | "), room);
    buffer.set_string(area.x + NAME, area.y + 1, text, Style::new().dim());
}

fn memory_text(g: &Gauge, wide: bool) -> String {
    match g.memory_limit {
        limit if !wide || limit == 0 || limit == u64::MAX => format!("mem {}", bytes(g.memory as f64)),
        limit => format!("mem {}/{}", bytes(g.memory as f64), bytes(limit as f64)),
    }
}

/// A bar of coloured parts; what is left is idle.
fn draw_bar(families: &[f64], area: Rect, buffer: &mut Buffer) {
    const EIGHTHS: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];
    let width = area.width as f64;
    let mut edge = 0.0;
    let mut ends: Vec<(f64, Color)> = Vec::new();
    for (family, part) in Family::ALL.into_iter().zip(families) {
        edge += part * width;
        ends.push((edge.min(width), color(family)));
    }
    for x in 0..area.width {
        let (from, to) = (x as f64, x as f64 + 1.0);
        let cell = &mut buffer[(area.x + x, area.y)];
        let colour_at = |at: f64| ends.iter().find(|(end, _)| at < *end).map(|(_, c)| *c);
        match (colour_at(from), colour_at(to - 1e-9)) {
            (Some(left), Some(right)) if left == right => {
                cell.set_symbol("█").set_fg(left);
            }
            (Some(left), right) => {
                let end = ends.iter().find(|(end, _)| from < *end).map_or(to, |(end, _)| *end);
                let eighth = (((end - from) * 8.0).round() as usize).clamp(1, 8) - 1;
                cell.set_symbol(EIGHTHS[eighth]).set_fg(left);
                if let Some(right) = right {
                    cell.set_bg(right);
                }
            }
            (None, _) => {
                cell.set_symbol("·").set_fg(Color::DarkGray);
            }
        }
    }
}

/// The families that have been seen.
fn draw_legend(top: &Top, area: Rect, buffer: &mut Buffer) {
    let mut spans = vec![Span::raw(" ")];
    let gauges = || top.rates.workers.values().filter_map(|w| w.view.gauge.as_ref());
    let seen = |f: &Family| gauges().any(|g| g.families_us[*f as usize] > 0);
    let families: Vec<Family> = Family::ALL.into_iter().filter(seen).collect();
    let full: usize = families.iter().map(|f| f.text().len() + 3).sum::<usize>() + 7;
    for family in families {
        let name = family.text();
        let name = if full > area.width as usize { &name[..name.len().min(5)] } else { name };
        spans.push(Span::styled("█ ", Style::new().fg(color(family))));
        spans.push(Span::raw(format!("{name} ")).dim());
    }
    spans.push("· idle".dim());
    Line::from(spans).render(area, buffer);
}

fn draw_clients(top: &Top, area: Rect, buffer: &mut Buffer) {
    let title = match top.worker.and_then(|id| top.rates.workers.get(&id)) {
        Some(worker) => format!(" clients of {} by {} ", worker.view.name, top.sort.text()),
        None => format!(" clients by {} ", top.sort.text()),
    };
    let frame = block(title, top.pane == Pane::Clients);
    let inner = frame.inner(area);
    let wide = inner.width >= 108;
    let mut heads = vec!["client", "share", "gpu time", "memory", "waiting", "ops/s", "unfinished"];
    let mut widths = vec![
        Constraint::Min(14),
        Constraint::Length(6),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(10),
    ];
    if wide {
        heads.extend(["tensors", "moved", "home"]);
        widths.extend([Constraint::Length(8), Constraint::Length(9), Constraint::Length(12)]);
    }
    let marked = |name: &str| match (name, top.sort) {
        ("share", Sort::Share)
        | ("gpu time", Sort::Time)
        | ("memory", Sort::Memory)
        | ("waiting", Sort::Waiting)
        | ("client", Sort::Name) => Style::new().bold().underlined(),
        _ => Style::new().dim(),
    };
    let head = heads.iter().map(|h| Cell::from(*h).style(marked(h)));
    let clients = top.clients();
    let at = top.client.and_then(|id| clients.iter().position(|c| c.view.id == id)).unwrap_or(0);
    let first = (at + 1).saturating_sub(inner.height.saturating_sub(1).max(1) as usize);
    let rows = clients.iter().skip(first).map(|c| client_row(top, c, wide));
    let table = Table::new(rows, widths).header(Row::new(head)).column_spacing(1).block(frame);
    Widget::render(table, area, buffer);
    if clients.is_empty() && inner.height > 1 {
        let text = "nobody is connected: gt.connect('host:port') in Python, or GT_SERVER=host:port";
        buffer.set_string(inner.x, inner.y + 1, cut(text, inner.width as usize), Style::new().dim());
    }
}

fn client_row<'a>(top: &Top, c: &ClientRates, wide: bool) -> Row<'a> {
    let v = &c.view;
    let waiting = if v.unfinished == 0 { "-".into() } else { seconds(v.waiting_ms as f64 / 1e3) };
    let mut cells = vec![
        v.name.clone(),
        format!("{:>4.0}%", c.share * 100.0),
        seconds(v.busy_us as f64 / 1e6),
        bytes(v.bytes as f64),
        waiting,
        count(c.instructions),
        v.unfinished.to_string(),
    ];
    if wide {
        let home = v.home.and_then(|id| top.rates.workers.get(&id));
        cells.push(v.tensors.to_string());
        cells.push(bytes(v.moved_bytes as f64));
        cells.push(home.map_or("-".into(), |w| w.view.name.clone()));
    }
    let row = Row::new(cells.into_iter().map(Cell::from));
    if top.client == Some(v.id) { row.style(Style::new().add_modifier(Modifier::REVERSED)) } else { row }
}

/// More about what is picked.
fn draw_picked(top: &Top, area: Rect, buffer: &mut Buffer) {
    let client = top.client.and_then(|id| top.rates.clients.get(&id));
    let worker = top.worker.and_then(|id| top.rates.workers.get(&id));
    let (title, lines) = match (client, worker) {
        (Some(client), _) => (client.view.name.clone(), client_lines(top, client)),
        (None, Some(worker)) => (worker.view.name.clone(), worker_lines(worker)),
        (None, None) => ("gone".into(), Vec::new()),
    };
    let frame = block(format!(" {title} "), false);
    let lines: Vec<Line> = lines.into_iter().map(Line::from).collect();
    Widget::render(Paragraph::new(lines).block(frame), area, buffer);
}

fn client_lines(top: &Top, c: &ClientRates) -> Vec<String> {
    let v = &c.view;
    let home = v.home.and_then(|id| top.rates.workers.get(&id)).map_or("-", |w| w.view.name.as_str());
    let last = top.rates.snapshot().and_then(|s| s.troubles.iter().rev().find(|t| t.whom == v.name));
    vec![
        format!(
            "{} programs ({}/s), {} instructions, {} messages",
            v.programs,
            count(c.programs),
            count(v.instructions as f64),
            v.messages
        ),
        format!(
            "{} tensors, {} on workers; {} moves, {} moved; home {home}",
            v.tensors,
            bytes(v.bytes as f64),
            v.moves,
            bytes(v.moved_bytes as f64)
        ),
        format!(
            "{} on devices, {} in queues, {:.2} of {} devices now",
            seconds(v.busy_us as f64 / 1e6),
            seconds(v.waited_us as f64 / 1e6),
            c.load,
            top.rates.workers.len()
        ),
        last.map_or("no failures".into(), |t| format!("last failure: {}", t.text)),
    ]
}

fn worker_lines(w: &WorkerRates) -> Vec<String> {
    let Some(g) = &w.view.gauge else { return vec!["no answer yet".into()] };
    let looked = g.plan_hits + g.plan_misses + g.resized;
    let share = 100.0 * (g.plan_hits + g.resized) as f64 / looked.max(1) as f64;
    let mix = Family::ALL.into_iter().zip(w.families).filter(|(_, part)| *part >= 0.005);
    let mix: Vec<String> = mix.map(|(f, part)| format!("{} {:.0}%", f.text(), part * 100.0)).collect();
    let mut reasons = g.miss_reasons.clone();
    reasons.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let reasons: Vec<String> = reasons.iter().take(3).map(|(why, n)| format!("{n} {why}")).collect();
    vec![
        format!("{} on {}, {} threads", w.view.backend, w.view.device, w.view.threads),
        format!("now: {}", if mix.is_empty() { "idle".into() } else { mix.join(", ") }),
        format!(
            "{} plans, {share:.1}% found again, {} spent making them",
            g.plans,
            seconds(g.plan_us as f64 / 1e6)
        ),
        format!("misses: {}", if reasons.is_empty() { "none".into() } else { reasons.join("; ") }),
    ]
}

fn footer(top: &Top, area: Rect, buffer: &mut Buffer) {
    let pause = if top.paused { "go on" } else { "pause" };
    let keys = [
        ("q", "quit"),
        ("p", pause),
        ("s", "sort"),
        ("tab", "pane"),
        ("↑↓", "pick"),
        ("esc", "unpick"),
        ("h", "help"),
    ];
    let mut spans = Vec::new();
    for (key, what) in keys {
        spans.push(format!(" {key} ").reversed());
        spans.push(format!(" {what}  ").dim());
    }
    Line::from(spans).render(area, buffer);
}

fn draw_help(area: Rect, buffer: &mut Buffer) {
    let lines = [
        "The bar of a worker is its time: coloured by what it ran,",
        "dots are idle. Values fade over a second.",
        "",
        "share     part of the device time that all clients had",
        "gpu time  device time since the client came",
        "waiting   how long nothing of its work has finished",
        "",
        "q quit   p pause   s sort   tab workers or clients",
        "up, down pick one and see more of it   esc pick none",
    ];
    let (width, height) = (62.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let x = area.x + (area.width - width) / 2;
    let y = area.y + (area.height - height) / 2;
    let window = Rect { x, y, width, height };
    Clear.render(window, buffer);
    let text: Vec<Line> = lines.into_iter().map(Line::from).collect();
    Widget::render(Paragraph::new(text).block(block(" help ".into(), true)), window, buffer);
}

/// The first `room` characters, with a sign where some are left out.
fn cut(text: &str, room: usize) -> String {
    match text.chars().count() <= room {
        true => text.to_string(),
        false => text.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_net::observe::{ClientView, Snapshot, WorkerView};

    fn top(workers: u32, clients: u64) -> Top {
        let mut top = Top::new("localhost:12345".into());
        for i in 0..40u64 {
            let workers = (0..workers).map(|id| {
                let mut families_us = [0; Family::ALL.len()];
                families_us[Family::Matmul as usize] = i * 300_000;
                families_us[Family::Elementwise as usize] = i * 100_000;
                let gauge = Gauge {
                    now_us: i * 500_000,
                    busy_us: i * 400_000,
                    families_us,
                    instructions: i * 5_000,
                    memory: 1 << 30,
                    memory_limit: 16 << 30,
                    ..Gauge::default()
                };
                let (name, backend) = (format!("worker-{id}"), "cpu".into());
                WorkerView { id, name, backend, gauge: Some(gauge), ..WorkerView::default() }
            });
            let clients = (1..=clients).map(|id| ClientView {
                id,
                name: format!("10.0.0.{id} #{id}"),
                busy_us: i * 100_000 * id,
                ..ClientView::default()
            });
            top.rates.take(Snapshot {
                at_ms: i * 500,
                workers: workers.collect(),
                clients: clients.collect(),
                ..Snapshot::default()
            });
        }
        top
    }

    #[test]
    fn fits_small_and_large_terminals() {
        for (width, height, workers) in
            [(80, 24, 1), (80, 24, 4), (160, 50, 8), (80, 24, 72), (40, 10, 2), (10, 3, 1)]
        {
            let mut top = top(workers, 5);
            let text = as_text(&top, width, height);
            assert_eq!(text.lines().count(), height as usize);
            if width >= 80 {
                assert!(text.contains("worker-0") && text.contains("80%"), "{text}");
                assert!(text.contains("10.0.0.5 #5") && text.contains("q  quit"), "{text}");
            }
            (top.worker, top.help) = (Some(0), true);
            as_text(&top, width, height);
            (top.worker, top.client, top.help) = (None, Some(3), false);
            as_text(&top, width, height);
        }
    }

    #[test]
    fn the_largest_share_comes_first_and_more_is_shown_of_what_is_picked() {
        let mut top = top(2, 3);
        let text = as_text(&top, 80, 24);
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} in {text}"));
        assert!(at("10.0.0.3") < at("10.0.0.2") && at("10.0.0.2") < at("10.0.0.1"), "{text}");
        top.client = Some(2);
        assert!(as_text(&top, 80, 24).contains("on devices"));
        (top.client, top.worker) = (None, Some(1));
        assert!(as_text(&top, 80, 24).contains("found again"));
    }
}
