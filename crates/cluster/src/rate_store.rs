//! The rates that servers share: a connection to Redis of its own, and the script that grants cells.
//!
//! The generic cell rate algorithm, with the clock of Redis: a key has one number, the time at which
//! it is idle again. `penstock` carries batches between this and the rules.
//!
//! # Invariants
//! - Every request has a deadline, and no password gets into an error.
//! - Every key expires by itself once it is idle.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use penstock_runtime::clock;
use redis::Script;
use redis::aio::MultiplexedConnection;

use crate::redis_bus::RedisUrlError;
use crate::redis_link::{RedisLinkError, RedisTarget};

/// A batch that is not answered in this time fails: requests wait for it.
const BATCH_TIMEOUT: Duration = Duration::from_millis(500);

/// Cells of a key that a server asks for.
#[derive(Debug, Clone, Copy)]
pub struct RateQuery {
    /// The key, the same on all servers.
    pub key: [u8; 16],
    /// Nanoseconds that one request takes at the rate.
    pub interval_nanos: u64,
    /// Nanoseconds that a key may be ahead.
    pub burst_nanos: u64,
    /// How many cells, at most.
    pub cells: u32,
}

/// The Redis that has the rates.
pub struct RateStore {
    target: RedisTarget,
    connection: Option<MultiplexedConnection>,
}

impl RateStore {
    /// The store at `url`, without being connected to it. `authorities` as for
    /// [`crate::RedisBus::start`].
    ///
    /// # Errors
    /// When `url` or `authorities` are not understood.
    pub fn new(url: &str, authorities: Option<Vec<u8>>) -> Result<Self, RedisUrlError> {
        let target = RedisTarget::parse(url, authorities).map_err(RedisUrlError::new)?;
        Ok(Self {
            target,
            connection: None,
        })
    }

    /// Where Redis is, without its password.
    #[must_use]
    pub fn address(&self) -> Arc<str> {
        Arc::clone(&self.target.address)
    }

    /// Connects, within a tokio runtime for its socket.
    ///
    /// # Errors
    /// Why Redis cannot be used. The text is for the log.
    pub async fn connect(&mut self) -> Result<(), String> {
        let connection = self.target.connect_for_commands().await;
        let connection = connection.map_err(|error| error.to_string())?;
        self.connection = Some(connection);
        // An old Redis, or a user that may run no script, is found out before a request waits.
        self.grant(&[]).await.map(|_| ())
    }

    /// The number of cells that are granted for each query, and the time after which there is
    /// another one. After an error it is not connected.
    ///
    /// # Errors
    /// Why Redis cannot be used. The text is for the log.
    pub async fn grant(&mut self, queries: &[RateQuery]) -> Result<Vec<(u32, Duration)>, String> {
        let Some(connection) = &mut self.connection else {
            return Err("it is not connected".to_owned());
        };
        let mut call = GRANT_SCRIPT.key(self.target.rates_prefix());
        for query in queries {
            call.arg(&query.key[..])
                .arg(micros(query.interval_nanos))
                .arg(micros(query.burst_nanos))
                .arg(query.cells);
        }
        let answer = clock::timeout(BATCH_TIMEOUT, call.invoke_async(connection)).await;
        let answer: Result<Vec<u64>, String> = match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(RedisLinkError::from(error).to_string()),
            None => Err("it does not answer in time".to_owned()),
        };
        let answer = answer.and_then(|answer| match answer.len() == 2 * queries.len() {
            true => Ok(answer),
            false => Err(RedisLinkError::UnexpectedReply.to_string()),
        });
        match answer {
            Ok(numbers) => {
                let pairs = numbers.chunks_exact(2);
                Ok(pairs
                    .map(|pair| {
                        let cells = u32::try_from(pair[0]).unwrap_or(u32::MAX);
                        (cells, Duration::from_micros(pair[1]))
                    })
                    .collect())
            }
            Err(error) => {
                self.connection = None;
                Err(error)
            }
        }
    }
}

impl std::fmt::Debug for RateStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RateStore")
            .field(&self.target.address)
            .finish()
    }
}

/// Microseconds with a fraction: the script counts in them.
fn micros(nanos: u64) -> String {
    format!("{}.{:03}", nanos / 1000, nanos % 1000)
}

/// Grants cells. Key: the prefix of the keys. Arguments: key, interval, burst (both in microseconds)
/// and wanted cells of each. The answer: granted cells and the time in microseconds after which there
/// is another one, for each.
///
/// A time in microseconds since 1970 is exact to a quarter of one as a number of Lua.
static GRANT_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local answer = {}
for i = 1, #ARGV, 4 do
  local key = KEYS[1] .. ARGV[i]
  local interval, burst = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local idle_at = tonumber(redis.call('GET', key) or '0')
  local ahead = math.max(idle_at - now, 0)
  local free = 0
  if ahead <= burst then free = math.floor((burst - ahead) / interval) + 1 end
  local cells = math.min(free, tonumber(ARGV[i + 3]))
  ahead = ahead + cells * interval
  if cells > 0 then
    redis.call('SET', key, string.format('%.2f', now + ahead), 'PX',
      math.ceil(ahead / 1000) + 1000)
  end
  answer[#answer + 1] = cells
  answer[#answer + 1] = math.ceil(math.max(ahead - burst, 0))
end
return answer
",
    )
});
