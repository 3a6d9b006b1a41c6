//! The first exchange on a connection: Hello, then Welcome or Refusal.
//!
//! The magic, the version range and the whole Refusal have a fixed layout, so that any two versions can
//! tell each other why they do not fit; the rest is postcard.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::process::Process;

/// The first bytes of every Hello.
pub const MAGIC: [u8; 4] = *b"GTnp";
/// The protocol versions this build speaks.
pub const VERSIONS: Versions = Versions { min: 1, max: 1 };
/// The longest Hello a server reads.
pub const MAX_HELLO: usize = 64 << 10;
/// The longest Welcome a client reads.
pub const MAX_WELCOME: usize = 1 << 20;

/// A range of protocol versions, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The lowest spoken.
    pub min: u16,
    /// The highest spoken.
    pub max: u16,
}

impl Versions {
    /// The highest version both sides speak.
    pub fn common(self, other: Versions) -> Option<u16> {
        let highest = self.max.min(other.max);
        (highest >= self.min && highest >= other.min).then_some(highest)
    }

    /// True when `version` is in the range.
    pub fn contains(self, version: u16) -> bool {
        (self.min..=self.max).contains(&version)
    }
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A user's process.
    Client,
    /// A process that runs programs on a device.
    Worker,
}

/// Proof that a connection continues an earlier link, and how far it got.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The link's id from its Welcome.
    pub link_id: u64,
    /// The link's secret from its Welcome.
    pub secret: [u8; 16],
    /// The highest Data number received in order.
    pub last_received: u64,
}

/// What the connecting side says first, after magic and versions.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The versions spoken; travels in the fixed prefix.
    #[serde(skip, default = "build_versions")]
    pub versions: Versions,
    /// Who connects.
    pub role: Role,
    /// The server's token, where it asks for one.
    pub token: Option<String>,
    /// Set when a cut link is resumed.
    pub resume: Option<Resume>,
    /// The `GT_*` variables of the connecting process.
    pub vars: Vec<(String, String)>,
    /// Name and version of the program, for logs.
    pub agent: String,
    /// The connecting process.
    pub process: Process,
    /// For the meaning layer.
    pub body: Vec<u8>,
}

fn build_versions() -> Versions {
    VERSIONS
}

/// The server's acceptance.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version spoken from here on.
    pub version: u16,
    /// The link's id, to resume it.
    pub link_id: u64,
    /// The link's secret, to resume it.
    pub link_secret: [u8; 16],
    /// The highest Data number the server has received in order.
    pub last_received: u64,
    /// The server's name, for logs.
    pub server: String,
    /// The server's process: once it has ended, nobody there knows the link.
    pub process: Process,
    /// For the meaning layer; the whole Welcome stays under `MAX_WELCOME`.
    pub body: Vec<u8>,
}

// Tokens and secrets stay out of logs.
impl fmt::Debug for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resumes = self.resume.as_ref().map(|resume| resume.link_id);
        write!(f, "Hello({:?}, {:?}, {:?}, resumes {resumes:?})", self.role, self.agent, self.versions)
    }
}

impl fmt::Debug for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Welcome({:?}, version {}, link {})", self.server, self.version, self.link_id)
    }
}

/// Why a server refuses, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Reason {
    /// No protocol version in common.
    Version = 1,
    /// The token is wrong or missing.
    Token = 2,
    /// The link to resume is not known (any more).
    UnknownLink = 3,
    /// The Hello cannot be read.
    Malformed = 4,
    /// The server has no room.
    Busy = 5,
    /// The server's handler refuses.
    Handler = 6,
}

/// A server's refusal: a reason for programs and a message for people.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why, for programs.
    pub reason: Reason,
    /// Why and what to do, for people.
    pub message: String,
}

impl Refusal {
    /// A refusal with its message.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Refusal { reason, message: message.into() }
    }

    /// The payload of a Refuse frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.reason as u16).to_le_bytes().to_vec();
        bytes.extend_from_slice(self.message.as_bytes());
        bytes
    }

    /// Reads the payload of a Refuse frame; anything at all gives some refusal.
    pub fn decode(bytes: &[u8]) -> Refusal {
        let Some((code, message)) = bytes.split_first_chunk::<2>() else {
            return Refusal::new(Reason::Handler, "the server refused without a reason");
        };
        let reason = match u16::from_le_bytes(*code) {
            1 => Reason::Version,
            2 => Reason::Token,
            3 => Reason::UnknownLink,
            4 => Reason::Malformed,
            5 => Reason::Busy,
            _ => Reason::Handler,
        };
        Refusal::new(reason, String::from_utf8_lossy(message))
    }
}

impl Hello {
    /// The payload of a Hello frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.versions.min.to_le_bytes());
        bytes.extend_from_slice(&self.versions.max.to_le_bytes());
        postcard::to_extend(self, bytes).unwrap_or_default()
    }

    /// Reads a Hello as a server speaking `ours` and asking for `token`; gives it with the version to speak.
    pub fn judge(bytes: &[u8], ours: Versions, token: Option<&str>) -> Result<(Hello, u16), Refusal> {
        let prefix = bytes.split_first_chunk::<8>().filter(|(head, _)| head[..4] == MAGIC);
        let Some((head, rest)) = prefix else {
            return Err(Refusal::new(Reason::Malformed, "hello: this is no GT client"));
        };
        let versions = Versions {
            min: u16::from_le_bytes([head[4], head[5]]),
            max: u16::from_le_bytes([head[6], head[7]]),
        };
        let version = ours.common(versions).ok_or_else(|| no_common_version(ours, versions))?;
        let mut hello: Hello = postcard::from_bytes(rest).map_err(|_| {
            Refusal::new(Reason::Malformed, "hello: cannot be read: upgrade gt on both sides")
        })?;
        hello.versions = versions;
        match (token, &hello.token) {
            (None, _) => {}
            (Some(token), Some(given)) if same_bytes(token.as_bytes(), given.as_bytes()) => {}
            (Some(_), given) => {
                let what = if given.is_some() { "token refused" } else { "this server asks for a token" };
                let todo = "set GT_TOKEN_FILE to the file the server was started with, or pass token=";
                return Err(Refusal::new(Reason::Token, format!("{what}: {todo}")));
            }
        }
        Ok((hello, version))
    }
}

impl Welcome {
    /// The payload of a Welcome frame.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads a Welcome as a client speaking `ours`.
    pub fn judge(bytes: &[u8], ours: Versions) -> Result<Welcome, Refusal> {
        let malformed =
            || Refusal::new(Reason::Malformed, "welcome: cannot be read: upgrade gt on both sides");
        let welcome: Welcome = postcard::from_bytes(bytes).map_err(|_| malformed())?;
        if ours.contains(welcome.version) { Ok(welcome) } else { Err(malformed()) }
    }
}

fn no_common_version(server: Versions, client: Versions) -> Refusal {
    let behind = if client.max < server.min { "client" } else { "server" };
    let range =
        |v: Versions| if v.min == v.max { v.min.to_string() } else { format!("{} to {}", v.min, v.max) };
    let (ours, theirs) = (range(server), range(client));
    let message = format!(
        "server speaks protocol {ours}, this client {theirs}: upgrade gt on the {behind} to the same version"
    );
    Refusal::new(Reason::Version, message)
}

/// Compares in a time that depends on the lengths only.
pub fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differing) == 0
}

/// Bytes from the system's random source.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            // Secrets that can be guessed are worse than no server.
            Err(error) => panic!("getrandom: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hello(min: u16, max: u16, token: Option<&str>) -> Hello {
        Hello {
            versions: Versions { min, max },
            role: Role::Worker,
            token: token.map(str::to_string),
            resume: Some(Resume { link_id: 7, secret: [3; 16], last_received: 9 }),
            vars: vec![("GT_SYNC".into(), "1".into())],
            agent: "gt 0.1".into(),
            process: Process::this(),
            body: vec![1, 2, 3],
        }
    }

    #[test]
    fn the_highest_common_version_is_chosen() {
        let ours = Versions { min: 2, max: 4 };
        for (min, max, chosen) in [(1, 2, 2), (1, 9, 4), (3, 3, 3), (4, 7, 4)] {
            let hello = hello(min, max, None);
            let (read, version) = Hello::judge(&hello.encode(), ours, None).unwrap();
            assert_eq!((read, version), (hello, chosen));
        }
    }

    #[test]
    fn refusals_say_what_to_do() {
        let ours = Versions { min: 3, max: 4 };
        let refuse = |hello: Hello, token| Hello::judge(&hello.encode(), ours, token).unwrap_err();
        let old = refuse(hello(1, 2, None), None);
        assert_eq!(
            old.message,
            "server speaks protocol 3 to 4, this client 1 to 2: upgrade gt on the client to the same version"
        );
        assert!(refuse(hello(5, 5, None), None).message.contains("client 5: upgrade gt on the server"));
        let wrong = refuse(hello(3, 3, Some("no")), Some("yes"));
        assert_eq!(wrong.reason, Reason::Token);
        assert!(wrong.message.starts_with("token refused: set GT_TOKEN_FILE"));
        assert_eq!(refuse(hello(3, 3, None), Some("yes")).reason, Reason::Token);
        assert!(Hello::judge(&hello(3, 3, Some("yes")).encode(), ours, Some("yes")).is_ok());
        assert_eq!(Refusal::decode(&wrong.encode()), wrong);
    }

    proptest! {
        #[test]
        fn garbage_is_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), keep in 0usize..9) {
            let mut near = hello(1, 1, None).encode();
            near.truncate(keep);
            near.extend(&bytes);
            let _ = Hello::judge(&near, VERSIONS, None);
            let _ = Welcome::judge(&bytes, VERSIONS);
            let _ = Refusal::decode(&bytes);
        }
    }
}
