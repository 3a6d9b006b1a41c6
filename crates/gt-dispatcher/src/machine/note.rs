//! What is noted of an event. It becomes a line of the log when somebody reads it: whoever traces gets lines by the batch,
//! and the step that they tell of does not wait for their text.

use gt_ir::{Family, TensorId};
use gt_net::observe::{PerFamily, Ran};
use smallvec::SmallVec;
use std::fmt::Write;
use std::sync::Arc;

/// One event.
pub(super) struct Note {
    /// Microseconds since the server started.
    pub at: u64,
    pub event: &'static str,
    /// Whom it concerns.
    pub whom: Arc<str>,
    pub what: &'static str,
    pub bytes: u64,
    pub details: Details,
}

/// What a line says behind its size.
pub(super) enum Details {
    Text(String),
    /// A program on its way.
    Program {
        session: u64,
        seq: u64,
        key: u64,
        ops: usize,
        inputs: usize,
        outs: usize,
        frees: usize,
    },
    /// What else a batch asks for.
    Asked {
        fetched: SmallVec<[TensorId; 2]>,
        frees: usize,
    },
    /// How far a client's programs have come.
    Progress {
        completed: u64,
        values: usize,
        failures: usize,
    },
    /// What a worker has finished.
    Finished {
        finished: usize,
        last: u64,
        values: usize,
        failures: usize,
    },
    /// A program that ran, and when it began on the server's clock; and its steps.
    Ran(Arc<Ran>, u64),
    Kernels(Arc<Ran>, u64),
}

impl From<String> for Details {
    fn from(text: String) -> Details {
        Details::Text(text)
    }
}

impl Note {
    /// The line of the log: time, number, event, whom it concerns, what, size, details.
    pub fn line(&self, number: u64) -> String {
        let mut out = String::with_capacity(160);
        let Note { event, whom, what, .. } = self;
        push_seconds(&mut out, self.at);
        let _ = write!(out, "s | #{number:04} | {event} | {whom} | {what} | ");
        push_size(&mut out, self.bytes);
        out.push_str(" | ");
        self.details.push(&mut out);
        out
    }
}

impl Details {
    /// What the line will say.
    pub fn text(self) -> String {
        match self {
            Details::Text(text) => text,
            other => {
                let mut out = String::new();
                other.push(&mut out);
                out
            }
        }
    }

    fn push(&self, out: &mut String) {
        // Writing to a string has no way to fail.
        let _ = match self {
            Details::Text(text) => out.write_str(text),
            Details::Program { session, seq, key, ops, inputs, outs, frees } => write!(
                out,
                "session={session} seq={seq} key={key:016x} ops={ops} in={inputs} out={outs} frees={frees}"
            ),
            Details::Asked { fetched, frees } => {
                out.push_str("fetches=[");
                for (i, id) in fetched.iter().enumerate() {
                    let _ = write!(out, "{}TENSOR[{}]", if i > 0 { " " } else { "" }, id.0);
                }
                write!(out, "] frees={frees}")
            }
            Details::Progress { completed, values, failures } => {
                write!(out, "completed={completed} values={values} failures={failures}")
            }
            Details::Finished { finished, last, values, failures } => {
                write!(out, "finished={finished} last={last} values={values} failures={failures}")
            }
            Details::Ran(ran, start) => push_ran(out, ran, *start),
            Details::Kernels(ran, start) => push_kernels(out, ran, *start),
        };
    }
}

fn push_ran(out: &mut String, ran: &Ran, start: u64) -> std::fmt::Result {
    let (session, seq, key, ops) = (ran.session.0, ran.seq, ran.key, ran.instrs);
    write!(out, "session={session} seq={seq} key={key:016x} ops={ops} start=")?;
    push_seconds(out, start);
    for (name, us) in [("s took=", ran.took_us), ("ms waited=", ran.waited_us), ("ms plan=", ran.plan_us)] {
        out.push_str(name);
        push_millis(out, us);
    }
    out.push_str("ms families=");
    push_families(out, &ran.shares)?;
    if ran.begun_early {
        out.push_str(" begun early");
    }
    if ran.failed {
        out.push_str(" failed");
    }
    match &ran.why {
        Some(why) => write!(out, " why={why}"),
        None => Ok(()),
    }
}

/// `matmul:61,reduce:39`: the percent of each family that has any.
fn push_families(out: &mut String, shares: &PerFamily) -> std::fmt::Result {
    let some = Family::ALL.into_iter().zip(shares).filter(|(_, share)| **share >= 0.005);
    for (i, (family, share)) in some.enumerate() {
        let comma = if i > 0 { "," } else { "" };
        write!(out, "{comma}{}:{}", family.text(), (share * 100.0).round() as u32)?;
    }
    Ok(())
}

/// `STEP:START+TOOK` in microseconds since the program's start. A program has some hundred steps, and this is written
/// for each time that it runs: whole numbers are quicker to write than fractions.
fn push_kernels(out: &mut String, ran: &Ran, start: u64) -> std::fmt::Result {
    let (session, seq, key) = (ran.session.0, ran.seq, ran.key);
    out.reserve(ran.kernels.len() * 18 + 96);
    write!(out, "session={session} seq={seq} key={key:016x} start=")?;
    push_seconds(out, start);
    out.push_str("s times=");
    for (i, k) in ran.kernels.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        push_number(out, k.step);
        out.push(':');
        push_tenths(out, k.start);
        out.push('+');
        push_tenths(out, k.took);
    }
    Ok(())
}

/// Microseconds as seconds.
fn push_seconds(out: &mut String, us: u64) {
    let _ = write!(out, "{}.{:06}", us / 1_000_000, us % 1_000_000);
}

/// Microseconds as milliseconds.
fn push_millis(out: &mut String, us: u64) {
    let _ = write!(out, "{}.{:03}", us / 1000, us % 1000);
}

/// Nanoseconds as microseconds with one digit behind the point.
fn push_tenths(out: &mut String, ns: u32) {
    let tenths = (ns as u64 + 50) / 100;
    push_number(out, (tenths / 10) as u32);
    out.push('.');
    out.push((b'0' + (tenths % 10) as u8) as char);
}

fn push_number(out: &mut String, mut n: u32) {
    let mut digits = [0; 10];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend(digits[at..].iter().map(|d| *d as char));
}

/// In whole numbers: fractions take longer to write than all the rest of a line.
fn push_size(out: &mut String, bytes: u64) {
    // Rounded to a tenth or a hundredth of a unit.
    let part = |unit: u64, of: u64| {
        let parts = (bytes as u128 * of as u128 + unit as u128 / 2) / unit as u128;
        (parts / of as u128, parts % of as u128)
    };
    let _ = match bytes {
        0..1024 => write!(out, "{bytes}B"),
        1024..1_048_576 => {
            let (whole, tenths) = part(1024, 10);
            write!(out, "{whole}.{tenths}KB")
        }
        1_048_576..1_073_741_824 => {
            let (whole, hundredths) = part(1_048_576, 100);
            write!(out, "{whole}.{hundredths:02}MB")
        }
        _ => {
            let (whole, hundredths) = part(1_073_741_824, 100);
            write!(out, "{whole}.{hundredths:02}GB")
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use gt_net::msg::SessionId;
    use gt_net::observe::StepTime;

    fn pushed(push: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        push(&mut out);
        out
    }

    #[test]
    fn sizes_are_rounded() {
        let sizes = [(1023, "1023B"), (1024, "1.0KB"), (1536, "1.5KB"), (1075, "1.0KB"), (1076, "1.1KB")];
        let large =
            [(4_000_000, "3.81MB"), (1 << 20, "1.00MB"), (5 << 30, "5.00GB"), (u64::MAX, "17179869184.00GB")];
        for (bytes, text) in sizes.into_iter().chain(large) {
            assert_eq!(pushed(|out| push_size(out, bytes)), text);
        }
    }

    #[test]
    fn times_are_written_as_formats_write_them() {
        for ns in [0, 49, 50, 99, 100, 949, 999, 1000, 12_345, 99_949, 4_294_967_295] {
            let want = (ns as f64 / 100.0).round() / 10.0;
            assert_eq!(pushed(|out| push_tenths(out, ns)), format!("{want:.1}"), "{ns}");
        }
        assert_eq!(pushed(|out| push_millis(out, 1_234_056)), "1234.056");
    }

    #[test]
    fn a_program_that_ran_is_a_line() {
        let kernels =
            vec![StepTime { step: 0, start: 0, took: 1500 }, StepTime { step: 12, start: 1600, took: 50 }];
        let mut shares = PerFamily::default();
        (shares[Family::Matmul as usize], shares[Family::Reduce as usize]) = (0.61, 0.39);
        let ran = Arc::new(Ran {
            session: SessionId(5),
            seq: 7,
            key: 0xab,
            instrs: 3,
            start_us: 0,
            took_us: 1500,
            waited_us: 2,
            plan_us: 0,
            why: Some("new".into()),
            failed: false,
            begun_early: true,
            shares,
            kernels,
        });
        let line = |event, details| {
            let whom = Arc::from("WORKER w0");
            Note { at: 2_000_001, event, whom, what: "Program", bytes: 0, details }.line(9)
        };
        assert_eq!(
            line("RAN", Details::Ran(ran.clone(), 1_500_000)),
            "2.000001s | #0009 | RAN | WORKER w0 | Program | 0B | session=5 seq=7 key=00000000000000ab ops=3 \
             start=1.500000s took=1.500ms waited=0.002ms plan=0.000ms families=matmul:61,reduce:39 begun early why=new"
        );
        assert_eq!(
            line("KERNELS", Details::Kernels(ran, 1_500_000)),
            "2.000001s | #0009 | KERNELS | WORKER w0 | Program | 0B | session=5 seq=7 key=00000000000000ab \
             start=1.500000s times=0:0.0+1.5,12:1.6+0.1"
        );
    }
}
