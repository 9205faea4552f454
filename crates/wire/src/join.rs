//! The protocol by which a server that runs an application joins a front end, line by line.
//!
//! `proxy` implements both sides (`proxy/src/join.rs`): the front end that listens, and the joiner
//! that connects, once for a **control** connection and once for each connection that **carries**
//! requests.
//!
//! ```text
//! joiner      penstock-join 2 NONCE
//! front end   NONCE
//! joiner      PROOF
//! front end   PROOF
//! joiner      PROOF control CAPACITY UPSTREAM LABEL      or   PROOF carry MEMBER
//! front end   ok MEMBER                                  or   no WHY
//! ```
//!
//! The joiner proves itself first: until then the front end has only sent a random number, which is
//! no help to try keys. The front end proves itself before the joiner sends its name and purpose.
//!
//! Afterwards a carrying connection is an HTTP/1.1 connection with the front end as its client, and
//! a control connection carries [`JoinerMessage`] one way and [`FrontEndMessage`] the other. A
//! proof is an HMAC (RFC 2104, SHA-256) of the name of its line, of both nonces and of the text
//! after it. Without the key a peer gets no request and cannot replace a member, and a recorded
//! proof is useless later. Nothing is encrypted.
//!
//! # Invariants
//!
//! - Lines are bounded ([`MAX_LINE_BYTES`]), and every deviation from the grammar is an error.

use std::fmt;

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;

/// Maximum length of a line, with its end.
pub const MAX_LINE_BYTES: usize = 512;

/// Minimum length of a key in bytes: that of the hash (RFC 2104 §3).
pub const MIN_KEY_BYTES: usize = 32;

const GREETING_PREFIX: &str = "penstock-join 2 ";

/// The key that both sides share.
#[derive(Clone)]
pub struct JoinSecret(hmac::Key);

/// A random number from each side, which makes every handshake different.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 16]);

/// One side of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinSide {
    Joiner,
    FrontEnd,
}

/// The two nonces of a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeNonces {
    /// The joiner's.
    pub joiner: Nonce,
    /// The front end's.
    pub front_end: Nonce,
}

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
    /// Another protocol, or another version of this one.
    #[error("it does not speak this version of penstock-join")]
    UnsupportedVersion,
    /// Its proof was made with another key.
    #[error("its key is another")]
    WrongKey,
    /// Not a line of the protocol at this point.
    #[error("a malformed line")]
    Malformed,
}

impl JoinSecret {
    /// Creates it from the text of the configuration.
    pub fn new(key: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
    }

    /// Encodes the line in which a side proves that it has the key.
    #[must_use]
    pub fn encode_proof(&self, side: JoinSide, nonces: &HandshakeNonces) -> String {
        format!("{}\n", self.sign(side.context(), nonces, ""))
    }

    /// Verifies it, without its line end.
    ///
    /// # Errors
    /// A malformed line, or a proof made with another key.
    pub fn verify(
        &self,
        side: JoinSide,
        nonces: &HandshakeNonces,
        line: &str,
    ) -> Result<(), JoinError> {
        self.verify_proof(side.context(), nonces, "", line)
    }

    fn sign(&self, context: &str, nonces: &HandshakeNonces, text: &str) -> String {
        HEXLOWER.encode(hmac::sign(&self.0, &proof_input(context, nonces, text)).as_ref())
    }

    fn verify_proof(
        &self,
        context: &str,
        nonces: &HandshakeNonces,
        text: &str,
        proof: &str,
    ) -> Result<(), JoinError> {
        let proof: [u8; 32] = parse_hex(proof).ok_or(JoinError::Malformed)?;
        let message = proof_input(context, nonces, text);
        hmac::verify(&self.0, &message, &proof).map_err(|_| JoinError::WrongKey)
    }
}

impl JoinSide {
    fn context(self) -> &'static str {
        match self {
            Self::Joiner => "penstock-join joiner ",
            Self::FrontEnd => "penstock-join front ",
        }
    }
}

/// The input of a proof: the line's context, the nonces, and the text.
fn proof_input(context: &str, nonces: &HandshakeNonces, text: &str) -> Vec<u8> {
    let parts = [
        context.as_bytes(),
        &nonces.joiner.0,
        &nonces.front_end.0,
        text.as_bytes(),
    ];
    parts.concat()
}

const REQUEST_PROOF_CONTEXT: &str = "penstock-join request ";

/// Encodes the joiner's first line.
#[must_use]
pub fn encode_greeting(nonce: &Nonce) -> String {
    format!("{GREETING_PREFIX}{}\n", HEXLOWER.encode(&nonce.0))
}

/// Parses it, without its line end.
///
/// # Errors
/// [`JoinError::UnsupportedVersion`].
pub fn parse_greeting(line: &str) -> Result<Nonce, JoinError> {
    let nonce = line.strip_prefix(GREETING_PREFIX).and_then(parse_hex);
    nonce.map(Nonce).ok_or(JoinError::UnsupportedVersion)
}

/// Encodes the front end's first line.
#[must_use]
pub fn encode_challenge(nonce: &Nonce) -> String {
    format!("{}\n", HEXLOWER.encode(&nonce.0))
}

/// Parses it, without its line end.
///
/// # Errors
/// [`JoinError::Malformed`].
pub fn parse_challenge(line: &str) -> Result<Nonce, JoinError> {
    parse_hex(line).map(Nonce).ok_or(JoinError::Malformed)
}

/// Encodes the joiner's third line.
#[must_use]
pub fn encode_join_request(
    secret: &JoinSecret,
    nonces: &HandshakeNonces,
    purpose: &JoinPurpose,
) -> String {
    let text = purpose.to_string();
    let proof = secret.sign(REQUEST_PROOF_CONTEXT, nonces, &text);
    format!("{proof} {text}\n")
}

/// Parses and verifies it, without its line end.
///
/// # Errors
/// A malformed line, or a proof made with another key.
pub fn parse_join_request(
    secret: &JoinSecret,
    nonces: &HandshakeNonces,
    line: &str,
) -> Result<JoinPurpose, JoinError> {
    let (proof, text) = line.split_once(' ').ok_or(JoinError::Malformed)?;
    secret.verify_proof(REQUEST_PROOF_CONTEXT, nonces, text, proof)?;
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

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCES: HandshakeNonces = HandshakeNonces {
        joiner: Nonce([0xa1; 16]),
        front_end: Nonce([0x0f; 16]),
    };

    fn secret() -> JoinSecret {
        JoinSecret::new("0123456789abcdef0123456789abcdef")
    }

    fn line(text: &str) -> &str {
        let line = text.strip_suffix('\n').expect("it is a line");
        assert!(
            !line.contains('\n') && text.len() <= MAX_LINE_BYTES,
            "{text:?}"
        );
        line
    }

    fn control() -> JoinPurpose {
        JoinPurpose::Control {
            capacity: 8,
            upstream: "guestbook".into(),
            label: "web-2:4711".into(),
        }
    }

    #[test]
    fn a_handshake_round_trips_line_by_line() {
        let secret = secret();
        let greeting = encode_greeting(&NONCES.joiner);
        assert_eq!(parse_greeting(line(&greeting)), Ok(NONCES.joiner));
        let challenge = encode_challenge(&NONCES.front_end);
        assert_eq!(parse_challenge(line(&challenge)), Ok(NONCES.front_end));
        let proof = secret.encode_proof(JoinSide::Joiner, &NONCES);
        assert_eq!(
            secret.verify(JoinSide::Joiner, &NONCES, line(&proof)),
            Ok(())
        );
        let proof = secret.encode_proof(JoinSide::FrontEnd, &NONCES);
        assert_eq!(
            secret.verify(JoinSide::FrontEnd, &NONCES, line(&proof)),
            Ok(())
        );
        for purpose in [
            control(),
            JoinPurpose::CarryRequests { member: 7 },
            JoinPurpose::CarryRequests { member: u64::MAX },
        ] {
            let request = encode_join_request(&secret, &NONCES, &purpose);
            assert_eq!(
                parse_join_request(&secret, &NONCES, line(&request)),
                Ok(purpose)
            );
        }
        for answer in [
            JoinReply::Accepted(u64::MAX),
            JoinReply::Refused("it is full".into()),
        ] {
            assert_eq!(JoinReply::parse(line(&answer.encode())), Ok(answer));
        }
        let long = JoinReply::Refused(format!("why\n{}", "é".repeat(400)));
        assert!(JoinReply::parse(line(&long.encode())).is_ok());
        for message in [
            JoinerMessage::Heartbeat,
            JoinerMessage::Capacity(3),
            JoinerMessage::Leave,
        ] {
            assert_eq!(JoinerMessage::parse(line(&message.encode())), Ok(message));
        }
        for message in [
            FrontEndMessage::Heartbeat,
            FrontEndMessage::Dial(1),
            FrontEndMessage::Superseded,
            FrontEndMessage::Drained,
        ] {
            assert_eq!(FrontEndMessage::parse(line(&message.encode())), Ok(message));
        }
    }

    #[test]
    fn a_proof_is_bound_to_key_side_handshake_and_text() {
        let (secret, other) = (
            secret(),
            JoinSecret::new("another key, of which nobody here knows"),
        );
        let elsewhere = Nonce([1; 16]);
        let later = HandshakeNonces {
            front_end: elsewhere,
            ..NONCES
        };
        let before = HandshakeNonces {
            joiner: elsewhere,
            ..NONCES
        };
        let (joiner, front) = (
            secret.encode_proof(JoinSide::Joiner, &NONCES),
            secret.encode_proof(JoinSide::FrontEnd, &NONCES),
        );
        for (secret, nonces) in [(&other, NONCES), (&secret, later), (&secret, before)] {
            let proof = secret.verify(JoinSide::Joiner, &nonces, line(&joiner));
            assert_eq!(proof, Err(JoinError::WrongKey));
            let proof = secret.verify(JoinSide::FrontEnd, &nonces, line(&front));
            assert_eq!(proof, Err(JoinError::WrongKey));
        }
        // Neither side proves itself with the other's proof.
        let reflected = secret.verify(JoinSide::FrontEnd, &NONCES, line(&joiner));
        assert_eq!(reflected, Err(JoinError::WrongKey));
        let reflected = secret.verify(JoinSide::Joiner, &NONCES, line(&front));
        assert_eq!(reflected, Err(JoinError::WrongKey));
        let request = encode_join_request(&secret, &NONCES, &control());
        let refused = |request: &str, nonces| parse_join_request(&secret, nonces, request);
        assert_eq!(
            parse_join_request(&other, &NONCES, line(&request)),
            Err(JoinError::WrongKey)
        );
        assert_eq!(refused(line(&request), &later), Err(JoinError::WrongKey));
        let more = request.replace("control 8 ", "control 80 ");
        assert_eq!(refused(line(&more), &NONCES), Err(JoinError::WrongKey));
        // Nor with a proof of another line.
        for proof in [line(&joiner), line(&front)] {
            let reflected = format!("{proof} {}", control());
            assert_eq!(refused(&reflected, &NONCES), Err(JoinError::WrongKey));
        }
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for text in [
            "",
            "penstock-join 2",
            "penstock-join 1 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "penstock-join 2 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0",
            "penstock-join 2 0F0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f",
            "penstock-join 2 0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f ",
            "GET / HTTP/1.1",
        ] {
            assert_eq!(
                parse_greeting(text),
                Err(JoinError::UnsupportedVersion),
                "{text:?}"
            );
        }
        for text in ["", "0f", "0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f 1"] {
            assert_eq!(parse_challenge(text), Err(JoinError::Malformed), "{text:?}");
        }
        for text in [
            "",
            "control",
            "control 8 a",
            "control 0 a b",
            "control +8 a b",
            "control 8 a b c",
            "control 8  b",
            "control 1000001 a b",
            "carry",
            "carry x",
            "carry 1 2",
            "else 1",
        ] {
            assert_eq!(JoinPurpose::parse(text), None, "{text:?}");
        }
        let long = format!("control 8 {} b", "a".repeat(101));
        assert_eq!(JoinPurpose::parse(&long), None);
        for text in [
            "",
            "beats",
            "capacity",
            "capacity 0",
            "capacity -1",
            "dial 1",
        ] {
            assert!(JoinerMessage::parse(text).is_err(), "{text:?}");
        }
        for text in ["", "beat ", "dial", "dial 0", "leave", "moved 1"] {
            assert!(FrontEndMessage::parse(text).is_err(), "{text:?}");
        }
        for text in ["", "ok", "ok x", "yes 1"] {
            assert!(JoinReply::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn any_text_becomes_a_label() {
        for (text, expected) in [
            ("web-2.example:4711", "web-2.example:4711"),
            ("a b\n", "a-b-"),
            ("", "-"),
        ] {
            assert_eq!(sanitise_label(text), expected);
        }
        assert_eq!(
            parse_name(&sanitise_label(&"ä".repeat(300))),
            Some("-".repeat(100))
        );
    }
}
