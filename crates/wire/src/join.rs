//! The protocol by which a server that runs an application joins a front end, line by line.
//!
//! `proxy` implements both sides (`proxy/src/join.rs`): the front end that listens, and the joiner
//! that connects, once for a **control** connection and once for each connection that **carries**
//! requests.
//!
//! ```text
//! joiner      penstock-join 3 NONCE
//! front end   NONCE                                      or   penstock-join 3 tls
//! joiner      PROOF BINDING
//! front end   PROOF BINDING
//! joiner      PROOF control CAPACITY UPSTREAM LABEL      or   PROOF carry MEMBER
//! front end   ok MEMBER                                  or   no WHY
//! ```
//!
//! The lines travel inside a TLS session, unless both sides are configured for plain TCP. The
//! joiner proves itself first: until then the front end has only sent a random number, which is no
//! help to try keys. The front end proves itself before the joiner sends its name and purpose. The
//! proofs are in `proof`. A front end that cannot serve a joiner's version, or demands TLS, answers
//! its greeting with its own version and `tls` or `plain`, and closes.
//!
//! Afterwards a carrying connection is an HTTP/1.1 connection with the front end as its client, and
//! a control connection carries [`JoinerMessage`] one way and [`FrontEndMessage`] the other.
//!
//! # Invariants
//!
//! - Lines are bounded ([`MAX_LINE_BYTES`]), and every deviation from the grammar is an error.

mod proof;
#[cfg(test)]
mod tests;

use std::fmt;

use data_encoding::HEXLOWER;

pub use self::proof::{ChannelBinding, JoinHandshake, JoinSecret, JoinSide, MIN_KEY_BYTES, Nonce};

/// Maximum length of a line, with its end.
pub const MAX_LINE_BYTES: usize = 512;

/// The version of the protocol. Both sides must have the same.
pub const VERSION: u32 = 3;

/// How a joiner's first line begins, and that of a front end that refuses it.
const PROTOCOL_NAME: &str = "penstock-join ";

/// The purpose of a joiner's connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinPurpose {
    /// Becomes a server of `upstream`.
    Control {
        /// Maximum number of requests in progress, at least 1.
        capacity: u32,
        /// The upstream's name.
        upstream: String,
        /// Its name on the status page and in the log: letters, digits and `-_.:`.
        label: String,
    },
    /// Carries requests of this member.
    CarryRequests {
        /// The number from the control connection's reply.
        member: u64,
    },
}

/// The front end's reply to the request to join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JoinReply {
    /// Joined, as this member.
    Accepted(u64),
    /// The reason for the refusal.
    Refused(String),
}

/// A joiner's message on its control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinerMessage {
    /// The joiner is alive.
    Heartbeat,
    /// The new maximum number of requests in progress, at least 1.
    Capacity(u32),
    /// The joiner accepts no new requests, and leaves after those in progress.
    Leave,
}

/// A front end's message on the control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrontEndMessage {
    /// The front end is alive.
    Heartbeat,
    /// Asks for that many more connections, at least 1.
    Dial(u32),
    /// The front end sends no new requests; its successor at that address may.
    Superseded,
    /// After [`JoinerMessage::Leave`]: no request is in progress, and none will follow.
    Drained,
}

/// Why a line is not the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another protocol.
    #[error("it does not speak penstock-join")]
    OtherProtocol,
    /// Another version of this protocol.
    #[error(
        "it speaks version {0} of penstock-join, and this side version {VERSION}: install the same \
         version of Penstock on both machines"
    )]
    OtherVersion(u32),
    /// A front end takes no joiner without TLS.
    #[error(
        "the front end takes servers over TLS only: leave out `--plain` here, or set `tls = false` \
         in `join` of its [server]"
    )]
    TlsRequired,
    /// Its proof was made with another key.
    #[error("its key is another")]
    WrongKey,
    /// Its proof was made with the key, for another connection than this one.
    #[error(
        "it has the key, but the TLS session ends at a machine in between (man in the middle, or a \
         proxy): nothing was sent. Find that machine, or let the proxy pass TCP through unchanged"
    )]
    Intercepted,
    /// Not a line of the protocol at this point.
    #[error("a malformed line")]
    Malformed,
}

/// Encodes the joiner's first line.
#[must_use]
pub fn encode_greeting(nonce: &Nonce) -> String {
    let nonce = HEXLOWER.encode(&nonce.0);
    format!("{PROTOCOL_NAME}{VERSION} {nonce}\n")
}

/// Parses it, without its line end.
///
/// # Errors
/// Another protocol or version, or a malformed line.
pub fn parse_greeting(line: &str) -> Result<Nonce, JoinError> {
    let nonce = parse_version(line)?;
    parse_hex(nonce).map(Nonce).ok_or(JoinError::Malformed)
}

/// Encodes what a front end sends in place of its first line to a joiner of another version, or to
/// one that has TLS where the front end has none, or the reverse.
#[must_use]
pub fn encode_requirement(needs_tls: bool) -> String {
    let mode = if needs_tls { TLS_MODE } else { "plain" };
    format!("{PROTOCOL_NAME}{VERSION} {mode}\n")
}

const TLS_MODE: &str = "tls";

/// Returns what stands behind the name and the version of this protocol.
fn parse_version(line: &str) -> Result<&str, JoinError> {
    let rest = line.strip_prefix(PROTOCOL_NAME).and_then(|rest| {
        let (version, rest) = rest.split_once(' ')?;
        Some((parse_count(version)?, rest))
    });
    match rest.ok_or(JoinError::OtherProtocol)? {
        (VERSION, rest) => Ok(rest),
        (other, _) => Err(JoinError::OtherVersion(other)),
    }
}

/// Encodes the front end's first line.
#[must_use]
pub fn encode_challenge(nonce: &Nonce) -> String {
    format!("{}\n", HEXLOWER.encode(&nonce.0))
}

/// Parses it, without its line end.
///
/// # Errors
/// Another version, TLS that the front end demands, or a malformed line.
pub fn parse_challenge(line: &str) -> Result<Nonce, JoinError> {
    if line.starts_with(PROTOCOL_NAME) && parse_version(line)? == TLS_MODE {
        return Err(JoinError::TlsRequired);
    }
    parse_hex(line).map(Nonce).ok_or(JoinError::Malformed)
}

/// Encodes the joiner's third line.
#[must_use]
pub fn encode_join_request(
    secret: &JoinSecret,
    handshake: &JoinHandshake,
    purpose: &JoinPurpose,
) -> String {
    let text = purpose.to_string();
    let proof = secret.sign_request(handshake, &text);
    format!("{proof} {text}\n")
}

/// Parses and verifies it, without its line end.
///
/// # Errors
/// A malformed line, or a proof made with another key.
pub fn parse_join_request(
    secret: &JoinSecret,
    handshake: &JoinHandshake,
    line: &str,
) -> Result<JoinPurpose, JoinError> {
    let (proof, text) = line.split_once(' ').ok_or(JoinError::Malformed)?;
    secret.verify_request(handshake, text, proof)?;
    JoinPurpose::parse(text).ok_or(JoinError::Malformed)
}

impl JoinPurpose {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let purpose = match words.next()? {
            "control" => Self::Control {
                capacity: parse_count(words.next()?)?,
                upstream: parse_name(words.next()?)?,
                label: parse_name(words.next()?)?,
            },
            "carry" => Self::CarryRequests {
                member: u64::from_str_radix(words.next()?, 16).ok()?,
            },
            _ => return None,
        };
        words.next().is_none().then_some(purpose)
    }
}

impl fmt::Display for JoinPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control {
                capacity,
                upstream,
                label,
            } => write!(f, "control {capacity} {upstream} {label}"),
            Self::CarryRequests { member } => write!(f, "carry {member:016x}"),
        }
    }
}

impl JoinReply {
    /// Encodes the line. The reason for a refusal is one line of plain text, cut if it is long.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Accepted(member) => format!("ok {member:016x}\n"),
            Self::Refused(why) => {
                let plain = why.chars().filter(|c| !c.is_control());
                let mut why = plain.collect::<String>();
                while why.len() > MAX_LINE_BYTES - 8 {
                    why.pop();
                }
                format!("no {why}\n")
            }
        }
    }

    /// Parses the line, without its end.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(line: &str) -> Result<Self, JoinError> {
        match line.split_once(' ') {
            Some(("ok", member)) => {
                let member = u64::from_str_radix(member, 16);
                member.map(Self::Accepted).map_err(|_| JoinError::Malformed)
            }
            Some(("no", why)) => Ok(Self::Refused(why.to_owned())),
            _ => Err(JoinError::Malformed),
        }
    }
}

/// Messages are a word, or one word and a count.
macro_rules! messages {
    ($message:ident: $($unit:ident = $word:literal),+; $count:ident(count) = $count_word:literal) => {
        impl $message {
            /// Encodes the line.
            #[must_use]
            pub fn encode(self) -> String {
                match self {
                    $(Self::$unit => concat!($word, "\n").to_owned(),)+
                    Self::$count(count) => format!(concat!($count_word, " {}\n"), count),
                }
            }

            /// Parses the line, without its end.
            ///
            /// # Errors
            /// [`JoinError::Malformed`].
            pub fn parse(line: &str) -> Result<Self, JoinError> {
                let message = match line.split_once(' ') {
                    $(None if line == $word => Some(Self::$unit),)+
                    Some(($count_word, count)) => parse_count(count).map(Self::$count),
                    _ => None,
                };
                message.ok_or(JoinError::Malformed)
            }
        }
    };
}

messages!(JoinerMessage: Heartbeat = "beat", Leave = "leave"; Capacity(count) = "capacity");
messages!(
    FrontEndMessage: Heartbeat = "beat", Superseded = "moved", Drained = "done"; Dial(count) = "dial"
);

/// Turns a text into a label: replaces invalid characters and cuts a long text.
#[must_use]
pub fn sanitise_label(text: &str) -> String {
    let plain = |c: char| match is_label_char(c) {
        true => c,
        false => '-',
    };
    let label: String = text.chars().map(plain).take(MAX_NAME_LEN).collect();
    match label.is_empty() {
        true => "-".to_owned(),
        false => label,
    }
}

const MAX_NAME_LEN: usize = 100;

fn is_label_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:".contains(c)
}

fn parse_name(text: &str) -> Option<String> {
    let is_name = (1..=MAX_NAME_LEN).contains(&text.len()) && text.chars().all(is_label_char);
    is_name.then(|| text.to_owned())
}

/// From 1 to a million, in digits alone.
fn parse_count(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number)?;
    (1..=1_000_000).contains(&number).then_some(number)
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}
