//! `gt doctor`: looks over this host and a running system, and says what is wrong and what to do.

mod host;
mod system;

use crate::see::find::{self, Where};
use gt_ir::Result;
use std::io::IsTerminal;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: Where,
    /// Look at this host only, not at a running system.
    #[arg(long)]
    local: bool,
}

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    Good,
    /// Works, but not as well as it could.
    Weak,
    Bad,
}

/// One thing that was looked at.
pub struct Finding {
    pub what: &'static str,
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Finding {
    pub fn good(what: &'static str, found: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Good, found: found.into(), advice: None }
    }

    pub fn weak(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Weak, found: found.into(), advice: Some(advice.into()) }
    }

    pub fn bad(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Finding {
        Finding { what, verdict: Verdict::Bad, found: found.into(), advice: Some(advice.into()) }
    }
}

pub fn run(args: Args) -> Result<i32> {
    println!("this host");
    let mut findings = host::look();
    findings.iter().for_each(print);
    if !args.local {
        let asked = args.at.host.is_some() || args.at.port.is_some() || args.at.unix.is_some();
        let named = std::env::var("GT_SERVER").is_ok_and(|v| !v.is_empty());
        if asked || named || !find::running().is_empty() {
            let addr = args.at.addr()?;
            println!("the system at {addr}");
            let more = system::look(&addr, args.at.token()?);
            more.iter().for_each(print);
            findings.extend(more);
        } else {
            println!(
                "no server runs on this host: `gt server` starts one, --host and --port name one elsewhere"
            );
        }
    }
    let count = |verdict| findings.iter().filter(|f| f.verdict == verdict).count();
    let (bad, weak) = (count(Verdict::Bad), count(Verdict::Weak));
    println!("{} checks: {bad} wrong, {weak} could be better", findings.len());
    Ok(if bad > 0 { 1 } else { 0 })
}

fn print(finding: &Finding) {
    let (sign, color) = match finding.verdict {
        Verdict::Good => ("ok  ", "32"),
        Verdict::Weak => ("note", "33"),
        Verdict::Bad => ("BAD ", "31"),
    };
    let sign = match std::io::stdout().is_terminal() {
        true => format!("\x1b[{color}m{sign}\x1b[0m"),
        false => sign.to_string(),
    };
    println!("  {sign}  {:<16} {}", finding.what, finding.found);
    if let Some(advice) = &finding.advice {
        println!("        {:<16} {advice}", "");
    }
}
