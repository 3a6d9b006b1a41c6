//! `gt trace`: what a running system does for a while, written to a file in the instruction log's form.

use super::find::Where;
use super::observer::{Observer, Seen};
use crate::progress::Progress;
use gt_ir::{Error, Result, bail};
use gt_net::observe::Detail;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: Where,
    /// Seconds to watch for.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0)]
    seconds: f64,
    /// End after so many events, if that is earlier.
    #[arg(short = 'n', long, value_name = "EVENTS")]
    events: Option<u64>,
    /// The folder of the file, which is made if need be.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Leave out how long every kernel took.
    #[arg(long)]
    no_kernels: bool,
}

pub fn run(args: Args) -> Result<i32> {
    if args.seconds.is_nan() || args.seconds <= 0.0 {
        bail!(Value, "trace: expected more than 0 seconds, got {}", args.seconds);
    }
    let stop = crate::stop_on_signals()?;
    let detail = if args.no_kernels { Detail::Programs } else { Detail::Kernels };
    super::give_way();
    let observer = Observer::connect(&args.at.addr()?, args.at.token()?, detail, 0)?;
    let path = args.dir.join(file_name());
    let mut file = create(&path)?;
    let start = Instant::now();
    let length = Duration::from_secs_f64(args.seconds);
    let mut progress = Progress::new("trace", args.seconds);
    let mut events = 0;
    loop {
        let left = length.saturating_sub(start.elapsed());
        let enough = args.events.is_some_and(|n| events >= n);
        if left.is_zero() || enough || stop.load(std::sync::atomic::Ordering::Relaxed) {
            break;
        }
        match observer.next(left.min(Duration::from_millis(50))) {
            Some(Seen::Lines(lines)) => {
                for line in lines {
                    // What belongs to an event is written with it.
                    let own = !line.starts_with(' ');
                    if own && args.events.is_some_and(|n| events >= n) {
                        break;
                    }
                    events += own as u64;
                    writeln!(file, "{line}").map_err(|e| cannot_write(&path, e))?;
                }
            }
            Some(Seen::Lost(why)) => bail!(Connection, "trace: the server is gone: {why}"),
            Some(Seen::Snapshot(_)) | None => {}
        }
        let by_events = args.events.map_or(0.0, |n| events as f64 / n as f64 * args.seconds);
        progress.to(start.elapsed().as_secs_f64().max(by_events), &format!("{events} events"));
    }
    progress.end();
    file.flush().map_err(|e| cannot_write(&path, e))?;
    println!("{} events in {}", events, path.display());
    Ok(0)
}

fn cannot_write(path: &Path, e: std::io::Error) -> Error {
    Error::Value(format!("trace: cannot write {}: {e}", path.display()))
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|e| cannot_write(folder, e))?;
    }
    // Another trace of the same second has the name already.
    let file = File::options().write(true).create_new(true).open(path);
    file.map(BufWriter::new).map_err(|e| cannot_write(path, e))
}

/// `trace_20250131_120000_123.log`, in universal time.
fn file_name() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = date(days as i64);
    let (h, m, s) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("trace_{year:04}{month:02}{day:02}_{h:02}{m:02}{s:02}_{:03}.log", now.subsec_millis())
}

/// Year, month and day of a day since 1970. Years begin in March here, so that leap days come last.
fn date(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + (month <= 2) as i64, month, doy - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn days_become_dates() {
        assert_eq!(date(0), (1970, 1, 1));
        assert_eq!(date(19_782), (2024, 2, 29));
        assert_eq!(date(20_088), (2024, 12, 31));
    }
}
