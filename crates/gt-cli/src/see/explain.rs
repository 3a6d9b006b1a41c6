//! `gt explain` and `gt.debug.explain()`: what the last step did, and why.

use super::account::{Account, Cost, Program, Sources, most};
use super::find::Where;
use super::log::{self, Entry, Reader};
use super::observer::{Observer, Seen};
use super::text::{bytes, seconds};
use gt_client::seen::ProgramLines;
use gt_ir::{Result, bail};
use gt_net::observe::{Detail, Family};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// Instruction logs or traces; without, a running server is watched. With GT_INSTRUCTION_LOG_KERNELS=1 a log has
    /// the times of kernels.
    #[arg(value_name = "LOG")]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    at: Where,
    /// Seconds to watch a running server for.
    #[arg(short, long, default_value_t = 2.0)]
    seconds: f64,
}

/// Lines and source lines that are listed at most.
const LISTED: usize = 10;

pub fn run(args: Args) -> Result<i32> {
    let mut entries = Vec::new();
    for path in &args.logs {
        entries.extend(log::read(path)?.0);
    }
    if args.logs.is_empty() {
        entries = watch(&args)?;
    }
    if entries.is_empty() {
        bail!(Value, "explain: nothing happened: run something meanwhile, or name an instruction log");
    }
    let sessions = sessions(&entries);
    if sessions.is_empty() {
        bail!(
            Value,
            "explain: no program ran in what was seen: run something meanwhile, or name a longer log"
        );
    }
    for session in sessions {
        let own = |e: &&Entry| e.count("session") == Some(session) || e.event == "STEPS" || e.event == "MOVE";
        let own: Vec<Entry> = entries.iter().filter(own).cloned().collect();
        let programs: Vec<u64> =
            own.iter().filter(|e| e.event == "RAN").filter_map(|e| e.count("seq")).collect();
        if let Some(last) = programs.into_iter().max() {
            println!("session {session}");
            // Two clients may have one program on different lines.
            let near = |e: &&Entry| e.event != "LINES" || e.count("session") == Some(session);
            let near: Vec<Entry> = entries.iter().filter(near).cloned().collect();
            println!("{}", text(&own, &Sources::new(&[], &near), &[last]));
        }
    }
    Ok(0)
}

fn sessions(entries: &[Entry]) -> BTreeSet<u64> {
    entries.iter().filter(|e| e.event == "RAN").filter_map(|e| e.count("session")).collect()
}

fn watch(args: &Args) -> Result<Vec<Entry>> {
    let observer = Observer::connect(&args.at.addr()?, args.at.token()?, Detail::Kernels, 0)?;
    let until = Instant::now() + Duration::from_secs_f64(args.seconds.clamp(0.1, 3600.0));
    let mut reader = Reader::default();
    while Instant::now() < until {
        match observer.next(Duration::from_millis(50)) {
            Some(Seen::Lines(lines)) => lines.iter().for_each(|line| reader.line(line)),
            Some(Seen::Lost(why)) => bail!(Connection, "explain: the server is gone: {why}"),
            Some(Seen::Snapshot(_)) | None => {}
        }
    }
    Ok(reader.entries)
}

/// The programs of the last step: those after the end of the optimizer step before the last, up to the last one's end;
/// without such ends, the last program.
pub fn last_step(programs: &[ProgramLines]) -> Vec<u64> {
    let ends: Vec<u64> = programs.iter().filter(|p| p.ends_step).map(|p| p.seq).collect();
    match (ends.as_slice(), programs.last()) {
        ([.., before, last], _) => {
            programs.iter().map(|p| p.seq).filter(|seq| seq > before && seq <= last).collect()
        }
        ([last], _) => vec![*last],
        ([], Some(last)) => vec![last.seq],
        ([], None) => Vec::new(),
    }
}

/// Explains the last step of a session.
pub fn session(account: &gt_client::seen::Account) -> String {
    let mut reader = Reader::default();
    account.log.iter().for_each(|line| reader.line(line));
    let step = last_step(&account.programs);
    if step.is_empty() {
        return "nothing has run yet: explain tells of the last step, so run one first\n".into();
    }
    text(&reader.entries, &Sources::new(&account.programs, &reader.entries), &step)
}

/// Explains some programs.
pub fn text(entries: &[Entry], sources: &Sources, step: &[u64]) -> String {
    let account = Account::new(entries, sources, |seq| step.contains(&seq));
    let mut out = String::new();
    head(&account, step, &mut out);
    moves(entries, step, &mut out);
    collectives(&account, &mut out);
    plans(&account.programs, &mut out);
    lines(&account, sources, &mut out);
    out
}

fn head(account: &Account, step: &[u64], out: &mut String) {
    let which = match step {
        [one] => format!("program {one}"),
        [first, .., last] => format!("programs {first} to {last}"),
        [] => "nothing".into(),
    };
    let sum = |of: fn(&Program) -> f64| account.programs.iter().map(of).sum::<f64>();
    let ops: u64 = account.programs.iter().map(|p| p.ops).sum();
    let mut families: BTreeMap<Family, f64> = BTreeMap::new();
    for p in &account.programs {
        for (family, share) in &p.families {
            *families.entry(*family).or_default() += share * p.took;
        }
    }
    let total = account.seconds().max(1e-12);
    let mut mix: Vec<(Family, f64)> = families.into_iter().collect();
    mix.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mix: Vec<String> =
        mix.iter().take(5).map(|(f, s)| format!("{} {:.0}%", f.text(), s / total * 100.0)).collect();
    let _ = writeln!(out, "the last step: {which}, {ops} instructions");
    let _ = writeln!(out, "  on devices  {:>9}  {}", seconds(total), mix.join(", "));
    let _ = writeln!(out, "  in queues   {:>9}", seconds(sum(|p| p.waited)));
    let _ = writeln!(out, "  compiling   {:>9}", seconds(sum(|p| p.planning)));
}

fn moves(entries: &[Entry], step: &[u64], out: &mut String) {
    let of_step = |e: &&Entry| e.event == "MOVE" && e.count("seq").is_some_and(|seq| step.contains(&seq));
    let moved: Vec<&Entry> = entries.iter().filter(of_step).collect();
    if moved.is_empty() {
        let _ = writeln!(out, "moves between workers: none");
        return;
    }
    let all: f64 = moved.iter().filter_map(|e| e.number("bytes")).sum();
    let _ = writeln!(out, "moves between workers: {}, {}", moved.len(), bytes(all));
    for e in moved.iter().take(LISTED) {
        let (log::Whom::Worker(from) | log::Whom::Client(from)) = &e.whom;
        let to = e.details.split(" to ").nth(1).and_then(|rest| rest.split(" seq=").next()).unwrap_or("?");
        let (size, seq) = (bytes(e.number("bytes").unwrap_or(0.0)), e.count("seq").unwrap_or(0));
        let tensor = e.tensor().unwrap_or(0);
        let _ = writeln!(
            out,
            "  {size:>9}  TENSOR[{tensor}] {from} -> {to}: program {seq} runs on {to}, where most of its inputs lie"
        );
    }
    if moved.len() > LISTED {
        let _ = writeln!(out, "  and {} more", moved.len() - LISTED);
    }
}

fn collectives(account: &Account, out: &mut String) {
    let costs: Vec<(&String, &Cost)> = Account::sorted(&account.kernels)
        .into_iter()
        .filter(|(_, c)| c.family == Some(Family::Collective))
        .collect();
    if costs.is_empty() {
        let _ = writeln!(out, "collectives: none");
        return;
    }
    let _ = writeln!(out, "collectives:");
    for (name, cost) in costs.iter().take(LISTED) {
        let line = most(&cost.lines).unwrap_or("");
        let _ = writeln!(out, "  {:>9}  {} x {name}  {line}", seconds(cost.seconds), cost.calls);
    }
}

fn plans(programs: &[Program], out: &mut String) {
    let made: Vec<&Program> = programs.iter().filter(|p| p.why.is_some()).collect();
    let found = programs.len() - made.len();
    let _ = writeln!(out, "plans: {found} found again, {} made", made.len());
    for p in made.iter().take(LISTED) {
        let why = p.why.as_deref().unwrap_or("");
        let _ = writeln!(out, "  {:>9}  program {} of {} ops: {why}", seconds(p.planning), p.seq, p.ops);
    }
    for p in programs.iter().filter(|p| p.failed) {
        let _ = writeln!(out, "  program {} failed on {}", p.seq, p.worker);
    }
}

fn lines(account: &Account, sources: &Sources, out: &mut String) {
    let total = account.seconds().max(1e-12);
    if sources.is_empty() {
        let _ = writeln!(
            out,
            "kernels by time (source lines are in the client's own log, and in gt.debug.explain()):"
        );
        for (name, cost) in Account::sorted(&account.kernels).into_iter().take(LISTED) {
            let percent = cost.seconds / total * 100.0;
            let _ = writeln!(out, "  {:>9} {percent:>5.1}%  {} x {name}", seconds(cost.seconds), cost.calls);
        }
        return;
    }
    let how = if account.estimated { ", shared out by the number of instructions" } else { "" };
    let _ = writeln!(out, "source lines by time{how}:");
    for (line, cost) in Account::sorted(&account.lines).into_iter().take(LISTED) {
        let percent = cost.seconds / total * 100.0;
        let what = most(&cost.what).map_or(String::new(), |name| format!("mostly {name}"));
        let _ = writeln!(out, "  {:>9} {percent:>5.1}%  {line:<32} {what}", seconds(cost.seconds));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
0.5s | #1 | MOVE | WORKER w0 | Send | 4.00MB | TENSOR[9] to w1 seq=7 bytes=4194304
1.0s | #2 | STEPS | WORKER w1 | Plan | 0B | key=00ff steps=2
    STEP 0 matmul instrs=0 matmul 64x64x64
    STEP 1 elementwise instrs=2,1 add mul [64]
1.0s | #3 | RAN | WORKER w1 | Program | 0B | session=1 seq=6 key=00ff ops=3 start=0.900000s took=9.000ms waited=0.000ms plan=0.000ms families=matmul:80,elementwise:20
1.0s | #4 | RAN | WORKER w1 | Program | 0B | session=1 seq=7 key=00ff ops=3 start=1.000000s took=10.000ms waited=1.000ms plan=2.000ms families=matmul:80,elementwise:20 why=same ops, other shapes
1.0s | #5 | KERNELS | WORKER w1 | Program | 0B | session=1 seq=7 key=00ff start=1.000000s times=0:0.0+8000.0,1:8000.0+2000.0";

    fn program(seq: u64, ends_step: bool) -> ProgramLines {
        let lines = ["train.py:3", "train.py:4", "train.py:5"].map(|l| Some(l.to_string()));
        ProgramLines { seq, lines: lines.into(), ends_step }
    }

    #[test]
    fn the_last_step_is_told_with_reasons_and_lines() {
        let programs = [program(5, true), program(6, false), program(7, true), program(8, false)];
        assert_eq!(last_step(&programs), [6, 7]);
        assert_eq!(last_step(&[program(1, false), program(2, false)]), [2]);
        let log = LOG.lines().map(str::to_string).collect();
        let account = gt_client::seen::Account { log, programs: vec![program(6, true), program(7, true)] };
        let told = session(&account);
        for part in [
            "program 7, 3 instructions",
            "4.0 MB  TENSOR[9] w0 -> w1: program 7 runs on w1",
            "2.0 ms  program 7 of 3 ops: same ops, other shapes",
            "8.0 ms  80.0%  train.py:3",
            "1.0 ms  10.0%  train.py:4",
        ] {
            assert!(told.contains(part), "{part} in\n{told}");
        }
    }

    /// Other workers' plans of the same key, and better ones that come later, have other steps.
    #[test]
    fn times_are_of_the_steps_that_were_told_before_them() {
        let other = "\
1.1s | #6 | STEPS | WORKER w0 | Plan | 0B | key=00ff steps=1
    STEP 0 elementwise instrs=0,1,2 add mul [64]";
        let before = LOG.replace("times=0:0.0+8000.0,1:8000.0+2000.0", "times=0:0.0+1000.0");
        let before = before.replace("seq=7", "seq=6");
        let better = LOG.replace("STEP 0 matmul instrs=0", "STEP 0 reduce instrs=1");
        let better = better.replace("STEP 1 elementwise instrs=2,1", "STEP 1 elementwise instrs=2");
        let log = [before.as_str(), better.as_str(), other].join("\n").lines().map(str::to_string).collect();
        let told =
            session(&gt_client::seen::Account { log, programs: vec![program(6, true), program(7, true)] });
        for part in ["8.0 ms  80.0%  train.py:4", "2.0 ms  20.0%  train.py:5"] {
            assert!(told.contains(part), "{part} in\n{told}");
        }
    }
}
