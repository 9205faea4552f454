//! Storage in Redis or Valkey, for front ends that share no folder.
//!
//! A value is a string under `penstock:<database>:acme:<key>`. A lock is a string with the holder's
//! token that expires (`SET NX PX`); it is refreshed and released only by its holder.

use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, IntoConnectionInfo, RedisError,
    Script, TlsCertificates,
};
use tokio::sync::Mutex;
use zeroize::Zeroizing;

use super::{LOCK_STALE_AFTER, Storage, StorageError, StorageFuture, StoredValue, ValueInfo};

/// Storage in Redis. It connects when it is first used, and again after an error.
pub struct RedisStorage {
    client: Client,
    prefix: String,
    /// The connection in use; held only while it is established.
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// How long a connection may take, and an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a verb may take, with the wait for a connection and its reply.
const VERB_TIMEOUT: Duration = Duration::from_secs(5);

/// Keys that `SCAN` looks at in one step.
const SCAN_KEYS: usize = 500;

static REFRESH_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
         return redis.call('PEXPIRE', KEYS[1], ARGV[2]) else return 0 end",
    )
});
static UNLOCK_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then \
         return redis.call('DEL', KEYS[1]) else return 0 end",
    )
});

impl RedisStorage {
    /// Creates a storage at the Redis of `url`. Redis need not be there yet. `authorities` (PEM) are
    /// trusted in place of the system's, for a `rediss://` address.
    ///
    /// # Errors
    /// When `url` is no address of a Redis, or the authorities cannot be used. The error does not
    /// show the address: it may have a password.
    pub fn new(url: &str, authorities: Option<Vec<u8>>) -> Result<Self, StorageError> {
        let broken = |_| StorageError::Redis("its URL is not an address of a Redis".to_owned());
        let info = url.into_connection_info().map_err(broken)?;
        let prefix = format!("penstock:{}:acme:", info.redis_settings().db());
        let client = match authorities {
            Some(authorities) => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(authorities),
                };
                Client::build_with_tls(info, certificates).map_err(|error| redis_error(&error))?
            }
            None => Client::open(info).map_err(broken)?,
        };
        Ok(Self {
            client,
            prefix,
            connection: Mutex::new(None),
        })
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn lock_key(&self, name: &str) -> String {
        self.key(&format!("locks/{name}"))
    }

    async fn connection(&self) -> Result<MultiplexedConnection, StorageError> {
        let mut slot = self.connection.lock().await;
        if let Some(connection) = &*slot {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(REPLY_TIMEOUT));
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await.map_err(|error| redis_error(&error))?;
        Ok(slot.insert(connection).clone())
    }

    async fn query<T: FromRedisValue>(&self, command: redis::Cmd) -> Result<T, StorageError> {
        timed(async {
            let mut connection = self.connection().await?;
            let reply = command.query_async(&mut connection).await;
            self.check(reply).await
        })
        .await
    }

    async fn run_script(
        &self,
        script: &Script,
        key: String,
        token: &str,
    ) -> Result<bool, StorageError> {
        let mut call = script.key(key);
        call.arg(token).arg(millis(LOCK_STALE_AFTER));
        timed(async {
            let mut connection = self.connection().await?;
            let reply = call.invoke_async(&mut connection).await;
            self.check(reply).await
        })
        .await
    }

    /// Forgets the connection after an error; the next verb makes a new one.
    async fn check<T>(&self, reply: Result<T, RedisError>) -> Result<T, StorageError> {
        match reply {
            Ok(value) => Ok(value),
            Err(error) => {
                *self.connection.lock().await = None;
                Err(redis_error(&error))
            }
        }
    }
}

impl Storage for RedisStorage {
    fn store<'a>(&'a self, key: &'a str, value: StoredValue) -> StorageFuture<'a, ()> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(key)).arg(value.as_slice());
        Box::pin(self.query(command))
    }

    fn store_temporary<'a>(
        &'a self,
        key: &'a str,
        value: StoredValue,
        lifetime: Duration,
    ) -> StorageFuture<'a, ()> {
        let mut command = redis::cmd("SET");
        command.arg(self.key(key)).arg(value.as_slice());
        command.arg("PX").arg(millis(lifetime));
        Box::pin(self.query(command))
    }

    fn removes_temporary_values(&self) -> bool {
        true
    }

    fn load<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<StoredValue>> {
        let mut command = redis::cmd("GET");
        command.arg(self.key(key));
        let loaded = self.query::<Option<Vec<u8>>>(command);
        Box::pin(async move { Ok(loaded.await?.map(Zeroizing::new)) })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StorageFuture<'a, ()> {
        let mut command = redis::cmd("DEL");
        command.arg(self.key(key));
        Box::pin(self.query(command))
    }

    fn stat<'a>(&'a self, key: &'a str) -> StorageFuture<'a, Option<ValueInfo>> {
        let mut command = redis::cmd("STRLEN");
        command.arg(self.key(key));
        let length = self.query::<u64>(command);
        Box::pin(async move {
            // A missing value has length 0, and no value is empty.
            let bytes = length.await?;
            let modified = None;
            Ok((bytes > 0).then_some(ValueInfo { bytes, modified }))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> StorageFuture<'a, Vec<String>> {
        Box::pin(async move {
            let pattern = format!("{}/*", escape_pattern(&self.key(prefix)));
            let (mut cursor, mut keys) = (0_u64, Vec::new());
            loop {
                let mut command = redis::cmd("SCAN");
                command.arg(cursor).arg("MATCH").arg(&pattern);
                command.arg("COUNT").arg(SCAN_KEYS);
                let (next, found): (u64, Vec<String>) = self.query(command).await?;
                let own = |key: &String| key.strip_prefix(&self.prefix).map(str::to_owned);
                keys.extend(found.iter().filter_map(own));
                if next == 0 {
                    // SCAN may return a key twice.
                    keys.sort_unstable();
                    keys.dedup();
                    return Ok(keys);
                }
                cursor = next;
            }
        })
    }

    fn try_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        let mut command = redis::cmd("SET");
        command.arg(self.lock_key(name)).arg(token).arg("NX");
        command.arg("PX").arg(millis(LOCK_STALE_AFTER));
        let reply = self.query::<Option<String>>(command);
        Box::pin(async move { Ok(reply.await?.is_some()) })
    }

    fn refresh_lock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, bool> {
        Box::pin(self.run_script(&REFRESH_SCRIPT, self.lock_key(name), token))
    }

    fn unlock<'a>(&'a self, name: &'a str, token: &'a str) -> StorageFuture<'a, ()> {
        let released = self.run_script(&UNLOCK_SCRIPT, self.lock_key(name), token);
        Box::pin(async move { released.await.map(drop) })
    }
}

/// Bounds a verb. Many verbs may wait for one connection that cannot be made.
async fn timed<T>(verb: impl Future<Output = Result<T, StorageError>>) -> Result<T, StorageError> {
    let timed = tokio::time::timeout(VERB_TIMEOUT, verb).await;
    timed.unwrap_or(Err(StorageError::Timeout(VERB_TIMEOUT)))
}

/// Words an error without address and password.
fn redis_error(error: &RedisError) -> StorageError {
    let detail = error.detail().unwrap_or_default();
    StorageError::Redis(match error.kind() {
        _ if error.is_timeout() => "it does not answer in time".to_owned(),
        ErrorKind::AuthenticationFailed => "it refuses the user or the password".to_owned(),
        _ if error.code() == Some("NOAUTH") => "it asks for a password".to_owned(),
        ErrorKind::Server(_) => {
            format!("it refuses: {} {detail}", error.code().unwrap_or_default())
        }
        _ => error.to_string(),
    })
}

fn escape_pattern(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl std::fmt::Debug for RedisStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RedisStorage")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
