//! The words by which a program that serves an application joins a front end, line by line.
//!
//! `proxy` speaks both sides (`proxy/src/join.rs`): the front end that listens and the joiner that dials in, once for
//! a **control** connection and once for each connection that **carries** requests.
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
//! The joiner proves itself first: the front end has said a random number by then and done nothing, so a stranger has
//! nothing to try keys on. Then the front end does, before the joiner says who it is and what for.
//!
//! From there on a connection that carries is one of HTTP/1.1 whose client is the front end, and a control connection has
//! [`ToFront`] one way and [`ToJoiner`] the other. A proof is an HMAC (RFC 2104, SHA-256) of which line it stands in, of both
//! nonces and of all that is said behind it: whoever has not the key gets no request and can take no one's place, and what was heard
//! once proves nothing later. Nothing is encrypted.
//!
//! What must stay true: lines are bounded ([`LINE_MAX`]), and what is not a line to the letter is an error.

use std::fmt;

use ring::hmac;

/// The longest line, its end included.
pub const LINE_MAX: usize = 512;

/// Bytes of a key, at least: as many as its hash has (RFC 2104 §3).
pub const KEY_BYTES_MIN: usize = 32;

const GREETING: &str = "penstock-join 2 ";

/// What both sides know.
#[derive(Clone)]
pub struct Secret(hmac::Key);

/// What makes each meeting another one: drawn at random by each side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nonce(pub [u8; 16]);

/// The two nonces of a meeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meeting {
    /// The joiner's.
    pub joiner: Nonce,
    /// The front end's.
    pub front: Nonce,
}

/// What a joiner's connection is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Purpose {
    /// To be a server of `upstream`.
    Control {
        /// Requests that it may have in progress, at least 1.
        capacity: u32,
        /// The upstream's name.
        upstream: String,
        /// What it is called on the status page and in the log: letters, digits and `-_.:`.
        label: String,
    },
    /// To carry requests of this member.
    Carry {
        /// As it was told on the control connection.
        member: u64,
    },
}

/// The last word of the front end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// It is in, as this member.
    Ok(u64),
    /// Why not.
    No(String),
}

/// What a joiner says on its control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToFront {
    /// It is there.
    Beat,
    /// It may have so many requests in progress from now on, at least 1.
    Capacity(u32),
    /// It takes no new ones, and ends with those that it has.
    Leave,
}

/// What a front end says there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToJoiner {
    /// It is there.
    Beat,
    /// So many more connections are wanted, at least 1.
    Dial(u32),
    /// It gives no new requests: whoever listens in its place may.
    Moved,
    /// After [`ToFront::Leave`]: nothing is in progress any more, and nothing comes.
    Done,
}

/// Why a line is not what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// Another protocol, or another version of this one.
    #[error("it does not speak this version of penstock-join")]
    Greeting,
    /// Its proof is that of another key.
    #[error("its key is another")]
    Proof,
    /// No line of this place.
    #[error("a malformed line")]
    Malformed,
}

impl Secret {
    /// From the text of the configuration.
    #[must_use]
    pub fn new(key: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
    }

    fn sign(&self, line: &str, meeting: &Meeting, said: &str) -> String {
        hex(hmac::sign(&self.0, &message(line, meeting, said)).as_ref())
    }

    fn verify(
        &self,
        line: &str,
        meeting: &Meeting,
        said: &str,
        proof: &str,
    ) -> Result<(), JoinError> {
        let proof: [u8; 32] = unhex(proof).ok_or(JoinError::Malformed)?;
        let message = message(line, meeting, said);
        hmac::verify(&self.0, &message, &proof).map_err(|_| JoinError::Proof)
    }
}

/// What is proved: in which line, in which meeting, and what.
fn message(line: &str, meeting: &Meeting, said: &str) -> Vec<u8> {
    let parts = [
        line.as_bytes(),
        &meeting.joiner.0,
        &meeting.front.0,
        said.as_bytes(),
    ];
    parts.concat()
}

const JOINER: &str = "penstock-join joiner ";
const FRONT: &str = "penstock-join front ";
const REQUEST: &str = "penstock-join request ";

/// The joiner's first line.
#[must_use]
pub fn greeting(nonce: &Nonce) -> String {
    format!("{GREETING}{}\n", hex(&nonce.0))
}

/// Reads it, without its end.
///
/// # Errors
/// [`JoinError::Greeting`].
pub fn parse_greeting(line: &str) -> Result<Nonce, JoinError> {
    let nonce = line.strip_prefix(GREETING).and_then(unhex);
    nonce.map(Nonce).ok_or(JoinError::Greeting)
}

/// The front end's first line.
#[must_use]
pub fn challenge(nonce: &Nonce) -> String {
    format!("{}\n", hex(&nonce.0))
}

/// Reads it, without its end.
///
/// # Errors
/// [`JoinError::Malformed`].
pub fn parse_challenge(line: &str) -> Result<Nonce, JoinError> {
    unhex(line).map(Nonce).ok_or(JoinError::Malformed)
}

/// The joiner's second line: it has the key.
#[must_use]
pub fn prove_joiner(secret: &Secret, meeting: &Meeting) -> String {
    format!("{}\n", secret.sign(JOINER, meeting, ""))
}

/// Reads it, without its end.
///
/// # Errors
/// A malformed line, or a proof of another key.
pub fn verify_joiner(secret: &Secret, meeting: &Meeting, line: &str) -> Result<(), JoinError> {
    secret.verify(JOINER, meeting, "", line)
}

/// The front end's second line: it has it, too.
#[must_use]
pub fn prove_front(secret: &Secret, meeting: &Meeting) -> String {
    format!("{}\n", secret.sign(FRONT, meeting, ""))
}

/// Reads it, without its end.
///
/// # Errors
/// A malformed line, or a proof of another key.
pub fn verify_front(secret: &Secret, meeting: &Meeting, line: &str) -> Result<(), JoinError> {
    secret.verify(FRONT, meeting, "", line)
}

/// The joiner's third line.
#[must_use]
pub fn request(secret: &Secret, meeting: &Meeting, purpose: &Purpose) -> String {
    let said = purpose.to_string();
    let proof = secret.sign(REQUEST, meeting, &said);
    format!("{proof} {said}\n")
}

/// Reads it, without its end.
///
/// # Errors
/// A malformed line, or a proof of another key.
pub fn parse_request(secret: &Secret, meeting: &Meeting, line: &str) -> Result<Purpose, JoinError> {
    let (proof, said) = line.split_once(' ').ok_or(JoinError::Malformed)?;
    secret.verify(REQUEST, meeting, said, proof)?;
    Purpose::parse(said).ok_or(JoinError::Malformed)
}

impl Purpose {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let purpose = match words.next()? {
            "control" => Self::Control {
                capacity: number(words.next()?)?,
                upstream: name(words.next()?)?,
                label: name(words.next()?)?,
            },
            "carry" => Self::Carry {
                member: u64::from_str_radix(words.next()?, 16).ok()?,
            },
            _ => return None,
        };
        words.next().is_none().then_some(purpose)
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control {
                capacity,
                upstream,
                label,
            } => write!(f, "control {capacity} {upstream} {label}"),
            Self::Carry { member } => write!(f, "carry {member:016x}"),
        }
    }
}

impl Answer {
    /// As it is sent. Why not is one line of plain text, cut where it is long.
    #[must_use]
    pub fn encode(&self) -> String {
        match self {
            Self::Ok(member) => format!("ok {member:016x}\n"),
            Self::No(why) => {
                let plain = why.chars().filter(|c| !c.is_control());
                let mut why = plain.collect::<String>();
                while why.len() > LINE_MAX - 8 {
                    why.pop();
                }
                format!("no {why}\n")
            }
        }
    }

    /// Reads it, without its end.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(line: &str) -> Result<Self, JoinError> {
        match line.split_once(' ') {
            Some(("ok", member)) => {
                let member = u64::from_str_radix(member, 16);
                member.map(Self::Ok).map_err(|_| JoinError::Malformed)
            }
            Some(("no", why)) => Ok(Self::No(why.to_owned())),
            _ => Err(JoinError::Malformed),
        }
    }
}

impl ToFront {
    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> String {
        match self {
            Self::Beat => "beat\n".to_owned(),
            Self::Capacity(capacity) => format!("capacity {capacity}\n"),
            Self::Leave => "leave\n".to_owned(),
        }
    }

    /// Reads it, without its end.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(line: &str) -> Result<Self, JoinError> {
        let said = match line.split_once(' ') {
            None if line == "beat" => Some(Self::Beat),
            None if line == "leave" => Some(Self::Leave),
            Some(("capacity", capacity)) => number(capacity).map(Self::Capacity),
            _ => None,
        };
        said.ok_or(JoinError::Malformed)
    }
}

impl ToJoiner {
    /// As it is sent.
    #[must_use]
    pub fn encode(self) -> String {
        match self {
            Self::Beat => "beat\n".to_owned(),
            Self::Dial(count) => format!("dial {count}\n"),
            Self::Moved => "moved\n".to_owned(),
            Self::Done => "done\n".to_owned(),
        }
    }

    /// Reads it, without its end.
    ///
    /// # Errors
    /// [`JoinError::Malformed`].
    pub fn parse(line: &str) -> Result<Self, JoinError> {
        let said = match line.split_once(' ') {
            None if line == "beat" => Some(Self::Beat),
            None if line == "moved" => Some(Self::Moved),
            None if line == "done" => Some(Self::Done),
            Some(("dial", count)) => number(count).map(Self::Dial),
            _ => None,
        };
        said.ok_or(JoinError::Malformed)
    }
}

/// A text as a label: what it cannot have is replaced, and a long one is cut.
#[must_use]
pub fn label(text: &str) -> String {
    let plain = |c: char| match is_plain(c) {
        true => c,
        false => '-',
    };
    let label: String = text.chars().map(plain).take(NAME_MAX).collect();
    match label.is_empty() {
        true => "-".to_owned(),
        false => label,
    }
}

const NAME_MAX: usize = 100;

fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.:".contains(c)
}

fn name(text: &str) -> Option<String> {
    let is_name = (1..=NAME_MAX).contains(&text.len()) && text.chars().all(is_plain);
    is_name.then(|| text.to_owned())
}

/// From 1 to a million, in digits alone.
fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number)?;
    (1..=1_000_000).contains(&number).then_some(number)
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_hex = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 2 * N || !text.as_bytes().iter().all(is_hex) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEETING: Meeting = Meeting {
        joiner: Nonce([0xa1; 16]),
        front: Nonce([0x0f; 16]),
    };

    fn secret() -> Secret {
        Secret::new("0123456789abcdef0123456789abcdef")
    }

    fn line(text: &str) -> &str {
        let line = text.strip_suffix('\n').expect("it is a line");
        assert!(!line.contains('\n') && text.len() <= LINE_MAX, "{text:?}");
        line
    }

    fn control() -> Purpose {
        Purpose::Control {
            capacity: 8,
            upstream: "guestbook".into(),
            label: "web-2:4711".into(),
        }
    }

    #[test]
    fn a_meeting_goes_from_the_first_line_to_the_last() {
        let secret = secret();
        let greeting = greeting(&MEETING.joiner);
        assert_eq!(parse_greeting(line(&greeting)), Ok(MEETING.joiner));
        let challenge = challenge(&MEETING.front);
        assert_eq!(parse_challenge(line(&challenge)), Ok(MEETING.front));
        let proof = prove_joiner(&secret, &MEETING);
        assert_eq!(verify_joiner(&secret, &MEETING, line(&proof)), Ok(()));
        let proof = prove_front(&secret, &MEETING);
        assert_eq!(verify_front(&secret, &MEETING, line(&proof)), Ok(()));
        for purpose in [
            control(),
            Purpose::Carry { member: 7 },
            Purpose::Carry { member: u64::MAX },
        ] {
            let request = request(&secret, &MEETING, &purpose);
            assert_eq!(
                parse_request(&secret, &MEETING, line(&request)),
                Ok(purpose)
            );
        }
        for answer in [Answer::Ok(u64::MAX), Answer::No("it is full".into())] {
            assert_eq!(Answer::parse(line(&answer.encode())), Ok(answer));
        }
        let long = Answer::No(format!("why\n{}", "é".repeat(400)));
        assert!(Answer::parse(line(&long.encode())).is_ok());
        for said in [ToFront::Beat, ToFront::Capacity(3), ToFront::Leave] {
            assert_eq!(ToFront::parse(line(&said.encode())), Ok(said));
        }
        for said in [
            ToJoiner::Beat,
            ToJoiner::Dial(1),
            ToJoiner::Moved,
            ToJoiner::Done,
        ] {
            assert_eq!(ToJoiner::parse(line(&said.encode())), Ok(said));
        }
    }

    #[test]
    fn a_proof_is_of_one_key_one_side_one_meeting_and_all_that_is_said() {
        let (secret, other) = (
            secret(),
            Secret::new("another key, of which nobody here knows"),
        );
        let elsewhere = Nonce([1; 16]);
        let later = Meeting {
            front: elsewhere,
            ..MEETING
        };
        let before = Meeting {
            joiner: elsewhere,
            ..MEETING
        };
        let (joiner, front) = (
            prove_joiner(&secret, &MEETING),
            prove_front(&secret, &MEETING),
        );
        for (secret, meeting) in [(&other, MEETING), (&secret, later), (&secret, before)] {
            let proof = verify_joiner(secret, &meeting, line(&joiner));
            assert_eq!(proof, Err(JoinError::Proof));
            let proof = verify_front(secret, &meeting, line(&front));
            assert_eq!(proof, Err(JoinError::Proof));
        }
        // Neither proves itself by what the other has said.
        let reflected = verify_front(&secret, &MEETING, line(&joiner));
        assert_eq!(reflected, Err(JoinError::Proof));
        let reflected = verify_joiner(&secret, &MEETING, line(&front));
        assert_eq!(reflected, Err(JoinError::Proof));
        let asked = request(&secret, &MEETING, &control());
        let refused = |asked: &str, meeting| parse_request(&secret, meeting, asked);
        assert_eq!(
            parse_request(&other, &MEETING, line(&asked)),
            Err(JoinError::Proof)
        );
        assert_eq!(refused(line(&asked), &later), Err(JoinError::Proof));
        let more = asked.replace("control 8 ", "control 80 ");
        assert_eq!(refused(line(&more), &MEETING), Err(JoinError::Proof));
        // Nor by a proof of another line.
        for proof in [line(&joiner), line(&front)] {
            let reflected = format!("{proof} {}", control());
            assert_eq!(refused(&reflected, &MEETING), Err(JoinError::Proof));
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
            assert_eq!(parse_greeting(text), Err(JoinError::Greeting), "{text:?}");
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
            assert_eq!(Purpose::parse(text), None, "{text:?}");
        }
        let long = format!("control 8 {} b", "a".repeat(101));
        assert_eq!(Purpose::parse(&long), None);
        for text in [
            "",
            "beats",
            "capacity",
            "capacity 0",
            "capacity -1",
            "dial 1",
        ] {
            assert!(ToFront::parse(text).is_err(), "{text:?}");
        }
        for text in ["", "beat ", "dial", "dial 0", "leave", "moved 1"] {
            assert!(ToJoiner::parse(text).is_err(), "{text:?}");
        }
        for text in ["", "ok", "ok x", "yes 1"] {
            assert!(Answer::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn any_text_becomes_a_label() {
        for (text, expected) in [
            ("web-2.example:4711", "web-2.example:4711"),
            ("a b\n", "a-b-"),
            ("", "-"),
        ] {
            assert_eq!(label(text), expected);
        }
        assert_eq!(name(&label(&"ä".repeat(300))), Some("-".repeat(100)));
    }
}
