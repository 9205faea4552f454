//! The `Authorization` fields that were right, and those that are being verified.
//!
//! # Invariants
//! - The memory has a bound, and no field can be read out of it.
//! - A field that was right for other users, or other hashes, is unknown: the digest covers them.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use aws_lc_rs::rand;
use siphasher::sip128::{Hasher128, SipHasher24};
use tokio::sync::OnceCell;

/// Fields of a generation that are remembered as right.
const MAX_YOUNG: usize = 4096;

/// Verifications that are listed before those that have ended are looked for.
const MAX_LISTED: usize = 256;

/// SipHash-2-4 of 128 bits: a keyed function for which no second field is found without the key.
pub(super) type FieldDigest = [u8; 16];

/// What all routes with passwords remember, for the life of the server.
pub struct VerifiedPasswords {
    key: [u8; 16],
    /// Held for a look.
    state: Mutex<State>,
}

/// When the young generation is full, the old one is forgotten. A field that is used again becomes
/// young again.
#[derive(Default)]
struct State {
    young: HashMap<FieldDigest, Arc<str>>,
    old: HashMap<FieldDigest, Arc<str>>,
    in_progress: HashMap<FieldDigest, Weak<Verification>>,
}

/// One computation that all requests with the same field wait for.
#[derive(Debug, Default)]
pub(super) struct Verification(OnceCell<bool>);

impl Default for VerifiedPasswords {
    /// # Panics
    /// On a machine without random numbers.
    fn default() -> Self {
        let mut key = [0; 16];
        let filled = rand::fill(&mut key);
        assert!(filled.is_ok(), "the machine has no random numbers");
        Self {
            key,
            state: Mutex::default(),
        }
    }
}

impl fmt::Debug for VerifiedPasswords {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("VerifiedPasswords")
    }
}

impl VerifiedPasswords {
    /// The digest of some parts, each with its length.
    pub(super) fn digest<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> FieldDigest {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        for part in parts {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        hasher.finish128().as_bytes()
    }

    /// The user whose field has this digest, if it was right.
    pub(super) fn user(&self, digest: &FieldDigest) -> Option<Arc<str>> {
        let mut state = self.lock();
        if let Some(user) = state.young.get(digest) {
            return Some(Arc::clone(user));
        }
        let user = state.old.remove(digest)?;
        state.insert(*digest, Arc::clone(&user));
        Some(user)
    }

    pub(super) fn insert(&self, digest: FieldDigest, user: Arc<str>) {
        self.lock().insert(digest, user);
    }

    /// The verification of a field, and whether nothing else waits for it.
    pub(super) fn verification(&self, digest: FieldDigest) -> (Arc<Verification>, bool) {
        let mut state = self.lock();
        let listed = state.in_progress.get(&digest);
        if let Some(verification) = listed.and_then(Weak::upgrade) {
            return (verification, false);
        }
        if state.in_progress.len() >= MAX_LISTED {
            let is_used = |_: &FieldDigest, listed: &mut Weak<_>| listed.strong_count() > 0;
            state.in_progress.retain(is_used);
        }
        let verification = Arc::<Verification>::default();
        let listed = Arc::downgrade(&verification);
        state.in_progress.insert(digest, listed);
        (verification, true)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, digest: FieldDigest, user: Arc<str>) {
        if self.young.len() >= MAX_YOUNG {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(digest, user);
    }
}

impl Verification {
    /// Whether the password is right. The first to ask computes it; if its client leaves, the next
    /// one does.
    ///
    /// # Errors
    /// That of the computation; the next one to ask computes it again.
    pub(super) async fn outcome<E, F: Future<Output = Result<bool, E>>>(
        &self,
        compute: impl FnOnce() -> F,
    ) -> Result<bool, E> {
        self.0.get_or_try_init(compute).await.copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_in_use_are_remembered_and_others_forgotten() {
        let verified = VerifiedPasswords::default();
        let digest = |field: &str| verified.digest([field.as_bytes()]);
        assert_ne!(digest("Basic YTpi"), digest("Basic YTpj"));
        let (used, unused) = (digest("used"), digest("unused"));
        verified.insert(used, "anna".into());
        verified.insert(unused, "bert".into());
        for number in 0..4 * MAX_YOUNG {
            verified.insert(digest(&number.to_string()), "other".into());
            assert_eq!(verified.user(&used).as_deref(), Some("anna"));
        }
        assert_eq!(verified.user(&unused), None);
        let state = verified.lock();
        assert!(state.young.len() <= MAX_YOUNG && state.old.len() <= MAX_YOUNG);
    }

    #[test]
    fn parts_of_a_digest_do_not_run_into_one_another() {
        let verified = VerifiedPasswords::default();
        let digest = |parts: &[&'static str]| verified.digest(parts.iter().map(|it| it.as_bytes()));
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_eq!(digest(&["a", "b"]), digest(&["a", "b"]));
    }

    #[test]
    fn verifications_that_have_ended_are_not_listed_for_long() {
        let verified = VerifiedPasswords::default();
        let digest = |number: u32| verified.digest([&number.to_be_bytes()[..]]);
        let (kept, is_first) = verified.verification(digest(0));
        assert!(is_first);
        for number in 1..4 * u32::try_from(MAX_LISTED).unwrap() {
            assert!(verified.verification(digest(number)).1);
            let (same, is_first) = verified.verification(digest(0));
            assert!(!is_first && Arc::ptr_eq(&kept, &same));
        }
        assert!(verified.lock().in_progress.len() <= MAX_LISTED);
        drop(kept);
        assert!(verified.verification(digest(0)).1);
    }
}
