//! The proofs by which both sides of a join show that they have the key: HMAC-SHA256 (RFC 2104).
//!
//! A proof covers the name of its line, both nonces, the connection that carries it
//! ([`ChannelBinding`]) and the text behind it. A side states the connection that it sees in its own
//! proof, so that the other side can tell a wrong key from a machine in between: that one has a TLS
//! session with each side, passes the lines on and cannot change them.
//!
//! # Invariants
//!
//! - Without the key a peer gets no request and cannot replace a member.
//! - A proof is valid in one handshake on one connection: recorded or passed on it is useless.

use std::fmt;

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;

use super::{JoinError, parse_hex};

/// Minimum length of a key in bytes: that of the hash (RFC 2104 §3).
pub const MIN_KEY_BYTES: usize = 32;

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

/// The connection that carries a handshake, as one side sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelBinding {
    /// TCP or a Unix socket, without TLS.
    Plain,
    /// A TLS session, by its `tls-exporter` (RFC 9266 §2). Not secret.
    Tls([u8; 32]),
}

/// What all proofs of one handshake cover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JoinHandshake {
    /// The joiner's number.
    pub joiner: Nonce,
    /// The front end's number.
    pub front_end: Nonce,
    /// The connection, as this side sees it.
    pub binding: ChannelBinding,
}

impl JoinSecret {
    /// Creates it from the text of the configuration.
    pub fn new(key: &str) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()))
    }

    /// Encodes the line in which a side proves that it has the key.
    #[must_use]
    pub fn encode_proof(&self, side: JoinSide, handshake: &JoinHandshake) -> String {
        let proof = self.sign(side.context(), handshake, "");
        format!("{proof} {}\n", handshake.binding)
    }

    /// Verifies it, without its line end.
    ///
    /// # Errors
    /// A malformed line, a proof made with another key ([`JoinError::WrongKey`]), or one made with
    /// this key for another connection ([`JoinError::Intercepted`]).
    pub fn verify(
        &self,
        side: JoinSide,
        handshake: &JoinHandshake,
        line: &str,
    ) -> Result<(), JoinError> {
        let (proof, binding) = line.split_once(' ').ok_or(JoinError::Malformed)?;
        let binding = ChannelBinding::parse(binding).ok_or(JoinError::Malformed)?;
        let stated = JoinHandshake {
            binding,
            ..*handshake
        };
        self.verify_proof(side.context(), &stated, "", proof)?;
        match binding == handshake.binding {
            true => Ok(()),
            false => Err(JoinError::Intercepted),
        }
    }

    /// The proof of a request to join.
    pub(super) fn sign_request(&self, handshake: &JoinHandshake, text: &str) -> String {
        self.sign(REQUEST_CONTEXT, handshake, text)
    }

    /// Verifies the proof of a request to join.
    ///
    /// # Errors
    /// As [`JoinSecret::verify`]; for another connection, [`JoinError::WrongKey`].
    pub(super) fn verify_request(
        &self,
        handshake: &JoinHandshake,
        text: &str,
        proof: &str,
    ) -> Result<(), JoinError> {
        self.verify_proof(REQUEST_CONTEXT, handshake, text, proof)
    }

    fn sign(&self, context: &str, handshake: &JoinHandshake, text: &str) -> String {
        HEXLOWER.encode(hmac::sign(&self.0, &proof_input(context, handshake, text)).as_ref())
    }

    fn verify_proof(
        &self,
        context: &str,
        handshake: &JoinHandshake,
        text: &str,
        proof: &str,
    ) -> Result<(), JoinError> {
        let proof: [u8; 32] = parse_hex(proof).ok_or(JoinError::Malformed)?;
        let message = proof_input(context, handshake, text);
        hmac::verify(&self.0, &message, &proof).map_err(|_| JoinError::WrongKey)
    }
}

impl JoinSide {
    fn context(self) -> &'static str {
        match self {
            Self::Joiner => "penstock-join 3 joiner ",
            Self::FrontEnd => "penstock-join 3 front ",
        }
    }
}

const REQUEST_CONTEXT: &str = "penstock-join 3 request ";

/// The input of a proof: the line's context, the nonces, the connection, and the text. No context
/// is the beginning of another, and all between context and text has a fixed length.
fn proof_input(context: &str, handshake: &JoinHandshake, text: &str) -> Vec<u8> {
    let (kind, session) = match handshake.binding {
        ChannelBinding::Plain => (0, [0; 32]),
        ChannelBinding::Tls(exporter) => (1, exporter),
    };
    let parts = [
        context.as_bytes(),
        &handshake.joiner.0,
        &handshake.front_end.0,
        &[kind],
        &session,
        text.as_bytes(),
    ];
    parts.concat()
}

impl ChannelBinding {
    fn parse(text: &str) -> Option<Self> {
        match text {
            PLAIN => Some(Self::Plain),
            exporter => parse_hex(exporter).map(Self::Tls),
        }
    }
}

const PLAIN: &str = "plain";

impl fmt::Display for ChannelBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str(PLAIN),
            Self::Tls(exporter) => f.write_str(&HEXLOWER.encode(exporter)),
        }
    }
}

impl fmt::Debug for JoinSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}
