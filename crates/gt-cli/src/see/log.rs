//! Reading instruction logs: lines become entries, entries become a timeline.

use gt_ir::{Error, Result};
use gt_net::observe::Family;
use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::rc::Rc;

/// Whom an entry concerns.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Whom {
    Client(String),
    Worker(String),
}

/// One line of the log, with the indented lines that follow it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Seconds since the server started.
    pub at: f64,
    pub event: String,
    pub whom: Whom,
    pub what: String,
    /// As it is written: rounded.
    pub bytes: f64,
    pub details: String,
    /// Instructions of a program, or steps of a plan.
    pub more: Vec<String>,
}

impl Entry {
    /// The value of `name=` in the details, up to the next space.
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut rest = self.details.as_str();
        while let Some(at) = rest.find(name) {
            let starts = at == 0 || rest.as_bytes()[at - 1] == b' ';
            let after = &rest[at + name.len()..];
            if let Some(value) = after.strip_prefix('=').filter(|_| starts) {
                return Some(value.split(' ').next().unwrap_or(value));
            }
            rest = after;
        }
        None
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        let text = self.field(name)?;
        let text = text.strip_suffix("ms").or_else(|| text.strip_suffix('s')).unwrap_or(text);
        text.parse().ok()
    }

    pub fn count(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Everything after `name=`.
    pub fn rest(&self, name: &str) -> Option<&str> {
        self.details.find(&format!("{name}=")).map(|at| &self.details[at + name.len() + 1..])
    }

    /// The number of the tensor it names.
    pub fn tensor(&self) -> Option<u64> {
        let (_, rest) = self.details.split_once("TENSOR[")?;
        rest.split(']').next()?.parse().ok()
    }
}

/// Reads the entries of a log. What is no entry is skipped and counted.
pub fn read(path: &Path) -> Result<(Vec<Entry>, usize)> {
    let failed = |e| Error::Value(format!("cannot read {}: {e}", path.display()));
    let file = BufReader::new(std::fs::File::open(path).map_err(failed)?);
    let mut reader = Reader::default();
    for line in file.lines() {
        reader.line(&line.map_err(failed)?);
    }
    Ok((reader.entries, reader.skipped))
}

/// Puts lines together to entries.
#[derive(Default)]
pub struct Reader {
    pub entries: Vec<Entry>,
    pub skipped: usize,
}

impl Reader {
    pub fn line(&mut self, line: &str) {
        if line.starts_with(' ') {
            match self.entries.last_mut() {
                Some(entry) => entry.more.push(line.trim().to_string()),
                None => self.skipped += 1,
            }
        } else if let Some(entry) = parse(line) {
            self.entries.push(entry);
        } else if !line.is_empty() {
            self.skipped += 1;
        }
    }
}

/// One line as an entry.
pub fn parse(line: &str) -> Option<Entry> {
    let line = line.strip_prefix("gt dispatcher: ").unwrap_or(line);
    let mut fields = line.splitn(7, " | ");
    let at: f64 = fields.next()?.strip_suffix('s')?.parse().ok()?;
    fields.next()?.strip_prefix('#')?;
    let event = fields.next()?.to_string();
    let whom = match fields.next()?.split_once(' ')? {
        ("CLIENT", name) => Whom::Client(name.to_string()),
        ("WORKER", name) => Whom::Worker(name.to_string()),
        _ => return None,
    };
    let what = fields.next()?.to_string();
    let bytes = size(fields.next()?)?;
    let details = fields.next().unwrap_or_default().to_string();
    Some(Entry { at, event, whom, what, bytes, details, more: Vec::new() })
}

/// A size as the log writes it.
fn size(text: &str) -> Option<f64> {
    let at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..at].parse().ok()?;
    let unit = match &text[at..] {
        "B" => 1.0,
        "KB" => 1024.0,
        "MB" => 1048576.0,
        "GB" => 1073741824.0,
        _ => return None,
    };
    Some(number * unit)
}

/// One step of a plan, as a log lists it.
#[derive(Clone, Debug)]
pub struct StepText {
    pub family: Family,
    pub instrs: Vec<u32>,
    pub name: Rc<str>,
}

/// `STEP 3 matmul instrs=12,11 matmul 64x32x16`.
pub fn step(text: &str) -> Option<StepText> {
    let mut words = text.strip_prefix("STEP ")?.splitn(4, ' ');
    words.next()?;
    let family = Family::parse(words.next()?)?;
    let instrs = words.next()?.strip_prefix("instrs=")?;
    let instrs = instrs.split(',').filter_map(|i| i.parse().ok()).collect();
    Some(StepText { family, instrs, name: words.next().unwrap_or_default().into() })
}

/// Percent by family, as `families=` says it.
pub fn families(text: &str) -> Vec<(Family, f64)> {
    let pair = |part: &str| {
        let (name, percent) = part.split_once(':')?;
        Some((Family::parse(name)?, percent.parse::<f64>().ok()? / 100.0))
    };
    text.split(',').filter_map(pair).collect()
}

/// When the steps of a program ran, as `times=` says it: (step, start, took) in seconds since its start.
pub fn times(text: &str) -> Vec<(u32, f64, f64)> {
    let one = |part: &str| {
        let (step, rest) = part.split_once(':')?;
        let (start, took) = rest.split_once('+')?;
        let micros = |t: &str| t.parse::<f64>().ok().map(|us| us / 1e6);
        Some((step.parse().ok()?, micros(start)?, micros(took)?))
    };
    text.split(',').filter_map(one).collect()
}

/// Steps of plans by worker and key, as the entries up to now told them: a better plan takes the place of a quick one.
#[derive(Default)]
pub struct Plans(HashMap<Whom, HashMap<String, Vec<StepText>>>);

impl Plans {
    /// Takes in a `STEPS` entry.
    pub fn take(&mut self, entry: &Entry) {
        let steps = entry.more.iter().filter_map(|line| step(line)).collect();
        if let Some(key) = entry.field("key") {
            self.0.entry(entry.whom.clone()).or_default().insert(key.to_string(), steps);
        }
    }

    /// The steps that a `KERNELS` entry tells of.
    pub fn of(&self, entry: &Entry) -> Option<&[StepText]> {
        Some(self.0.get(&entry.whom)?.get(entry.field("key")?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_entries() {
        let mut reader = Reader::default();
        for line in [
            "0.001500s | #0001 | CONNECT | CLIENT 127.0.0.1 #2 | Session | 0B | session=2",
            "0.100000s | #0002 | RECV | CLIENT 127.0.0.1 #2 | Upload | 3.81MB | TENSOR[5] f32[1000, 1000] inside the message",
            "    TENSOR[3] := ADD TENSOR[0] TENSOR[2]",
            "0.2s | #0003 | RAN | WORKER w0 | Program | 0B | session=2 seq=7 key=00ff ops=3 start=0.150000s took=1.500ms \
             waited=0.000ms plan=0.000ms families=matmul:60,reduce:40 why=same ops, other shapes",
            "nonsense",
        ] {
            reader.line(line);
        }
        let [connect, upload, ran] = reader.entries.as_slice() else { panic!("{:?}", reader.entries) };
        assert_eq!((connect.at, reader.skipped), (0.0015, 1));
        assert_eq!(upload.whom, Whom::Client("127.0.0.1 #2".into()));
        assert_eq!((upload.tensor(), upload.more.len()), (Some(5), 1));
        assert!((upload.bytes - 4e6).abs() < 1e4);
        assert_eq!(
            (ran.number("start"), ran.number("took"), ran.count("seq")),
            (Some(0.15), Some(1.5), Some(7))
        );
        assert_eq!(ran.rest("why"), Some("same ops, other shapes"));
        assert_eq!(families(ran.field("families").unwrap()), [(Family::Matmul, 0.6), (Family::Reduce, 0.4)]);
        assert_eq!(times("0:0.0+12.5,3:12.5+2.0"), [(0, 0.0, 12.5e-6), (3, 12.5e-6, 2e-6)]);
        assert_eq!(step("STEP 3 matmul instrs=12,11 matmul 64x32x16").unwrap().instrs, [12, 11]);
    }
}
