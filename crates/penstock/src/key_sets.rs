//! Key sets (JWKS) of routes with `jwt` or `mercure`: fetches them from a URL or a file, and again
//! in time.
//!
//! `hub_service` and `wiring` ask for the set of each route that names one, at start and at reload.
//! Each source has one task on the control loop, which ends when no route uses its set any more. A
//! configuration is taken into use when its sets have been fetched, or cannot be now.
//!
//! # Invariants
//! - No request waits for a fetch: a token is verified with the keys that are there.
//! - A fetch has a deadline and a bound, and one that fails leaves the keys as they are.
//! - Tokens of unknown keys cause a fetch, but not more often than every [`MIN_FETCH_INTERVAL`].

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_config::{HttpScheme, KeySetSource};
use penstock_runtime::blocking::Pool;
use penstock_runtime::{clock, loops};
use penstock_tokens::{KeySet, SharedKeySet};
use tokio::sync::oneshot;

use crate::web_request;

/// The sets that routes use, by their sources.
#[derive(Debug)]
pub(crate) struct KeySets {
    /// Held for a look only.
    sets: Mutex<HashMap<KeySetSource, Weak<SharedKeySet>>>,
    /// Those that have no task yet.
    new_sets: Mutex<Vec<(KeySetSource, Weak<SharedKeySet>)>>,
    /// Reads files and looks names up: both may take long.
    pool: Pool,
}

/// The time between two fetches: issuers publish a key some time before they sign with it.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// The least time between two fetches, and until one that failed is repeated.
const MIN_FETCH_INTERVAL: Duration = Duration::from_secs(5);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
/// A set of thirty keys with certificates is a third of it.
const MAX_SET_BYTES: usize = 256 << 10;

impl Default for KeySets {
    fn default() -> Self {
        Self {
            sets: Mutex::default(),
            new_sets: Mutex::default(),
            // A name server that does not answer holds a thread for each set.
            pool: Pool::new("key sets", 4, 64),
        }
    }
}

impl KeySets {
    /// The set of a source, which is fetched from the next [`KeySets::fetch_new_sets`] on if it was
    /// not before.
    pub(crate) fn set_of(&self, source: &KeySetSource) -> Arc<SharedKeySet> {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        sets.retain(|_, set| set.strong_count() > 0);
        if let Some(set) = sets.get(source).and_then(Weak::upgrade) {
            return set;
        }
        let set = Arc::<SharedKeySet>::default();
        sets.insert(source.clone(), Arc::downgrade(&set));
        let new_set = (source.clone(), Arc::downgrade(&set));
        self.lock_new_sets().push(new_set);
        set
    }

    /// Begins to fetch the sets that were asked for, and waits until each has been fetched once or
    /// cannot be now: requests that come then find its keys. At most [`FETCH_TIMEOUT`]. Called on
    /// the control loop.
    pub(crate) async fn fetch_new_sets(&self) {
        let new_sets = std::mem::take(&mut *self.lock_new_sets());
        let begin = |new_set| {
            let (first_fetched, first_fetch) = oneshot::channel();
            let pool = self.pool.clone();
            loops::spawn_here(keep_fetched(new_set, first_fetched, pool));
            first_fetch
        };
        let first_fetches: Vec<_> = new_sets.into_iter().map(begin).collect();
        let all = async {
            for first_fetch in first_fetches {
                // The task of a set that is not used any more ends without a word.
                let _ = first_fetch.await;
            }
        };
        let _ = clock::timeout(FETCH_TIMEOUT, all).await;
    }

    fn lock_new_sets(&self) -> MutexGuard<'_, Vec<(KeySetSource, Weak<SharedKeySet>)>> {
        let locked = self.new_sets.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for KeySets {
    fn drop(&mut self) {
        self.pool.close();
    }
}

/// Fetches a set while it is used.
async fn keep_fetched(
    (source, set): (KeySetSource, Weak<SharedKeySet>),
    first_fetched: oneshot::Sender<()>,
    pool: Pool,
) {
    let (mut last_error, mut last_text) = (None, Vec::new());
    let mut first_fetched = Some(first_fetched);
    loop {
        // Boxed: a connection with TLS takes room that a task has only while it fetches.
        let fetching = Box::pin(fetch(&source, &pool));
        let fetched = clock::timeout(FETCH_TIMEOUT, fetching).await;
        let fetched = fetched.unwrap_or_else(|| Err(format!("no answer within {FETCH_TIMEOUT:?}")));
        let Some(set) = set.upgrade() else {
            return;
        };
        let mut interval = REFRESH_INTERVAL;
        match fetched {
            Ok((text, keys)) => {
                if last_error.take().is_some() {
                    log::info!(
                        "tokens: key set {source}: fetched again (keys={})",
                        keys.len()
                    );
                }
                // What was verified with the same keys stays verified.
                if text != last_text {
                    set.replace(keys);
                    last_text = text;
                }
            }
            Err(error) => {
                if last_error.as_ref() != Some(&error) {
                    log::warn!(
                        "tokens: key set {source}: {error}: the keys that were fetched before \
                         stay in use, if any"
                    );
                }
                last_error = Some(error);
                interval = MIN_FETCH_INTERVAL;
            }
        }
        if let Some(fetched) = first_fetched.take() {
            // The server may not wait for it.
            let _ = fetched.send(());
        }
        clock::sleep(MIN_FETCH_INTERVAL).await;
        let rest = interval.saturating_sub(MIN_FETCH_INTERVAL);
        clock::timeout(rest, set.wait_for_unknown_key()).await;
        if Arc::strong_count(&set) == 1 {
            return;
        }
    }
}

/// Fetches a set, as a text and as keys, or says why not.
async fn fetch(source: &KeySetSource, pool: &Pool) -> Result<(Vec<u8>, KeySet), String> {
    let text = match source {
        KeySetSource::File(path) => {
            let path = path.clone();
            let text = pool.run(move || read_file(&path)).await;
            let text = text.map_err(|error| error.to_string())?;
            text.map_err(|error| format!("cannot be read: {error}"))?
        }
        KeySetSource::Http {
            scheme,
            authority,
            target,
        } => fetch_over_http(*scheme, (authority, target), pool).await?,
    };
    let keys = KeySet::parse(&text).map_err(|error| error.to_string())?;
    Ok((text, keys))
}

async fn fetch_over_http(
    scheme: HttpScheme,
    (authority, target): (&str, &str),
    pool: &Pool,
) -> Result<Vec<u8>, String> {
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\n\
         Connection: close\r\n\r\n"
    );
    let server = (scheme == HttpScheme::Https, authority);
    let sent = web_request::send(
        server,
        request.as_bytes(),
        pool,
        FETCH_TIMEOUT,
        MAX_SET_BYTES,
    );
    let answer = sent.await?;
    match answer.status {
        200 => Ok(answer.body),
        status => Err(format!("status {status}, and 200 is expected")),
    }
}

/// Runs in the pool.
fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    #[expect(clippy::disallowed_methods, reason = "called in the pool")]
    let file = std::fs::File::open(path)?;
    let mut text = Vec::new();
    file.take(MAX_SET_BYTES as u64 + 1).read_to_end(&mut text)?;
    match text.len() > MAX_SET_BYTES {
        true => Err(io::Error::other(format!(
            "larger than {MAX_SET_BYTES} bytes"
        ))),
        false => Ok(text),
    }
}
