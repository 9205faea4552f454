//! The connections to Redis, and every request that is sent over them.
//!
//! There are two: one for commands, one for pushed messages (RESP3: Redis 6 or later, or Valkey).
//! Used by `bus_driver`.
//!
//! # Invariants
//! - Every request has a deadline.
//! - A reply that is not understood is an error with the reason, never a panic.
//! - No password gets into an error or the log.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisError, TlsCertificates,
};
use tokio::sync::Notify;

use crate::cluster_totals::ClusterTotals;
use crate::entry::{ChannelName, EntryContent, EntryOrigin, NodeId, RedisClock, RedisDataset};
use crate::entry_encoding;
use crate::followed_channel::{StreamPage, StreamReadRequest};
use crate::outbox::OutgoingEntry;
use crate::push_queue::{PushQueue, PushQueueEnd};
use crate::redis_scripts::{self, RedisKeys};
use crate::reply_decoder::{
    DELIVERED_EARLY, DELIVERED_IN_ORDER, DatasetChangedError, PAGE_ENTRIES, RawEntry, ReplyDecoder,
};

/// How long a connection may take, and an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a server counts as there after it was heard of.
const NODE_TTL: Duration = Duration::from_secs(10);

/// Why the connection to Redis is of no use. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum RedisLinkError {
    #[error("{0}")]
    Redis(String),
    #[error("{0}")]
    PushQueueEnded(#[from] PushQueueEnd),
    #[error("it answers with something else than it was asked for")]
    UnexpectedReply,
    #[error("{0}")]
    DatasetChanged(#[from] DatasetChangedError),
}

impl From<RedisError> for RedisLinkError {
    fn from(error: RedisError) -> Self {
        let says = error.detail().unwrap_or_default();
        Self::Redis(match error.kind() {
            // What the library says of these has no address and no password in it.
            _ if error.is_timeout() => "it does not answer in time".to_owned(),
            ErrorKind::AuthenticationFailed => "it refuses the user or the password".to_owned(),
            _ if error.code() == Some("NOAUTH") => "it asks for a password".to_owned(),
            ErrorKind::Server(_) => {
                format!("it refuses: {} {says}", error.code().unwrap_or_default())
            }
            _ => error.to_string(),
        })
    }
}

/// Which Redis, without being connected to it.
#[derive(Clone)]
pub(super) struct RedisTarget {
    client: Client,
    /// Its address as it is logged.
    pub(super) address: Arc<str>,
    keys: RedisKeys,
}

/// A connected Redis. Cheap to clone.
#[derive(Clone)]
pub(super) struct RedisLink {
    node_id: NodeId,
    keys: RedisKeys,
    commands: MultiplexedConnection,
    pubsub: MultiplexedConnection,
    pub(super) dataset: RedisDataset,
    pub(super) push_queue: Arc<PushQueue>,
    pub(super) decoder: ReplyDecoder,
}

/// How much of a channel Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamRetention {
    /// Channels that may be followed.
    pub(super) max_channels: usize,
    /// Entries of a stream.
    pub(super) max_entries: usize,
    /// How long after its last entry.
    pub(super) max_age: Duration,
}

impl RedisTarget {
    /// `authorities` (PEM) are trusted in place of the system's, for a `rediss://` address.
    pub(super) fn parse(url: &str, authorities: Option<Vec<u8>>) -> Result<Self, String> {
        let broken = |_| "it is not an address of a Redis".to_owned();
        let info = url.into_connection_info().map_err(broken)?;
        let settings = info.redis_settings().clone();
        let names = RedisKeys::for_database(settings.db());
        let address: Arc<str> = info.addr().to_string().into();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        let client = match authorities {
            Some(authorities) => {
                let certificates = TlsCertificates {
                    client_tls: None,
                    root_cert: Some(authorities),
                };
                Client::build_with_tls(info, certificates).map_err(|error| error.to_string())?
            }
            None => Client::open(info).map_err(broken)?,
        };
        Ok(Self {
            client,
            address,
            keys: names,
        })
    }

    /// A connection for commands alone.
    pub(super) async fn connect_for_commands(
        &self,
    ) -> Result<MultiplexedConnection, RedisLinkError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(REPLY_TIMEOUT));
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        Ok(connection.await?)
    }

    /// The beginning of the keys of rates.
    pub(super) fn rates_prefix(&self) -> String {
        self.keys.key("rate:")
    }

    /// Connects, and finds out which data is there; `fresh` marks it if it has no mark.
    pub(super) async fn connect(
        self,
        me: NodeId,
        fresh: String,
        kept: Duration,
        bell: Arc<Notify>,
    ) -> Result<RedisLink, RedisLinkError> {
        let pushes = Arc::new(PushQueue::new(bell));
        let pushed = pushes.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(REPLY_TIMEOUT));
        let hears = config.clone().set_push_sender(move |info: PushInfo| {
            pushed.push(info);
            Ok::<(), RedisLinkError>(())
        });
        let connect = |config| {
            let client = self.client.clone();
            async move {
                client
                    .get_multiplexed_async_connection_with_config(&config)
                    .await
            }
        };
        let mut commands = connect(config).await?;
        let hearing = connect(hears).await?;
        let mark_key = self.keys.key("mark");
        let (mark, (seconds, micros)): (String, (u64, u64)) = redis::pipe()
            .cmd("SET")
            .arg(&mark_key)
            .arg(fresh)
            .arg("NX")
            .ignore()
            .cmd("GET")
            .arg(&mark_key)
            .cmd("TIME")
            .query_async(&mut commands)
            .await?;
        let clock = RedisClock {
            read_at: clock::now(),
            ms: seconds.saturating_mul(1000).saturating_add(micros / 1000),
        };
        let run = redis_run_id(&mut commands).await?;
        if let Some(run) = &run {
            // Names no server, so that the first one to come can write it.
            let origin = EntryOrigin {
                node: NodeId(RandomState::new().hash_one(run)),
                number: 1,
            };
            let () = redis_scripts::RECORD_RUN_SCRIPT
                .key(self.keys.key("run"))
                .arg(&**run)
                .arg(&*self.keys.prefix)
                .arg(origin.to_string())
                .arg(entry_encoding::encode(
                    &EntryContent::AllHistoriesInvalidated,
                ))
                .arg(millis(kept))
                .arg(&mark)
                .invoke_async(&mut commands)
                .await?;
        }
        let mark: Arc<str> = mark.into();
        Ok(RedisLink {
            node_id: me,
            decoder: ReplyDecoder::new(self.keys.clone(), mark.clone()),
            keys: self.keys,
            commands,
            pubsub: hearing,
            dataset: RedisDataset {
                id: mark,
                run_id: run,
                clock,
            },
            push_queue: pushes,
        })
    }
}

/// Which run of Redis this is; none where it does not tell.
async fn redis_run_id(
    commands: &mut MultiplexedConnection,
) -> Result<Option<Arc<str>>, RedisLinkError> {
    let told: Result<String, RedisError> =
        redis::cmd("INFO").arg("server").query_async(commands).await;
    match told {
        Ok(told) => {
            let mut lines = told.lines();
            Ok(lines.find_map(|line| line.strip_prefix("run_id:").map(Arc::from)))
        }
        // This user may not ask.
        Err(error) if error.code() == Some("NOPERM") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl RedisLink {
    pub(super) async fn publish(
        mut self,
        batch: Vec<OutgoingEntry>,
        keeping: StreamRetention,
    ) -> Result<Vec<OutgoingEntry>, RedisLinkError> {
        let sent = self.keys.key(format_args!("sent:{}", self.node_id));
        let mut call = redis_scripts::PUBLISH_SCRIPT.key(sent);
        call.key(self.keys.key("mark"))
            .arg(self.node_id.to_string())
            .arg(&*self.dataset.id)
            .arg(keeping.max_entries)
            .arg(millis(keeping.max_age))
            .arg(&*self.keys.prefix);
        for entry in &batch {
            call.arg(entry.number)
                .arg(&*entry.channel)
                .arg(if entry.was_delivered_early {
                    DELIVERED_EARLY
                } else {
                    DELIVERED_IN_ORDER
                })
                .arg(entry_encoding::encode(&entry.content));
        }
        let is_taken: bool = call.invoke_async(&mut self.commands).await?;
        if is_taken {
            Ok(batch)
        } else {
            Err(DatasetChangedError.into())
        }
    }

    pub(super) async fn subscribe(
        mut self,
        channels: Vec<ChannelName>,
    ) -> Result<Vec<ChannelName>, RedisLinkError> {
        let topics: Vec<String> = channels.iter().map(|c| self.keys.topic(c)).collect();
        self.pubsub.subscribe(topics).await?;
        Ok(channels)
    }

    pub(super) async fn unsubscribe(
        mut self,
        channels: Vec<ChannelName>,
    ) -> Result<(), RedisLinkError> {
        let topics: Vec<String> = channels.iter().map(|c| self.keys.topic(c)).collect();
        Ok(self.pubsub.unsubscribe(topics).await?)
    }

    /// Pings Redis. All that was published to this server before the ping comes before its reply.
    pub(super) async fn ping(mut self, now: Instant) -> Result<Instant, RedisLinkError> {
        let () = redis::cmd("PING").query_async(&mut self.pubsub).await?;
        Ok(now)
    }

    pub(super) async fn read_streams(
        mut self,
        reads: Vec<StreamReadRequest>,
        keeping: StreamRetention,
    ) -> Result<Vec<StreamPage>, RedisLinkError> {
        let mut pipe = redis::pipe();
        for read in &reads {
            let stream = self.keys.key(format_args!("stream:{}", read.channel));
            match read.from {
                Some(from) => {
                    let from = from.to_string();
                    let range = pipe.cmd("XRANGE").arg(stream).arg(from).arg("+");
                    range.arg("COUNT").arg(PAGE_ENTRIES);
                }
                None => {
                    let range = pipe.cmd("XREVRANGE").arg(stream).arg("+").arg("-");
                    // More than clients may come back for: it also tells which servers had
                    // published what.
                    range.arg("COUNT").arg(keeping.max_entries.max(1));
                }
            }
        }
        let answers: Vec<Vec<RawEntry>> = pipe.query_async(&mut self.commands).await?;
        if answers.len() != reads.len() {
            return Err(RedisLinkError::UnexpectedReply);
        }
        let parts = reads.into_iter().zip(answers);
        Ok(parts
            .map(|(read, raw)| self.decoder.decode_page(read, raw))
            .collect())
    }

    /// Reports the counters of this server; returns the sums over all servers.
    pub(super) async fn report_counters(
        mut self,
        numbers: Vec<(String, u64)>,
    ) -> Result<ClusterTotals, RedisLinkError> {
        let mut call = redis_scripts::REPORT_SCRIPT.key(self.keys.key("nodes"));
        call.key(self.keys.key("mark"))
            .arg(self.node_id.to_string())
            .arg(millis(NODE_TTL))
            .arg(&*self.keys.prefix);
        for (name, value) in numbers {
            call.arg(name).arg(value);
        }
        let answer: Vec<String> = call.invoke_async(&mut self.commands).await?;
        let [mark, nodes, sums @ ..] = &*answer else {
            return Err(RedisLinkError::UnexpectedReply);
        };
        if **mark != *self.dataset.id {
            return Err(DatasetChangedError.into());
        }
        ClusterTotals::parse(nodes, sums).ok_or(RedisLinkError::UnexpectedReply)
    }

    /// Takes this server out of the sums.
    pub(super) async fn remove_node(mut self) -> Result<(), RedisLinkError> {
        let mut pipe = redis::pipe();
        let zrem = Cmd::zrem(self.keys.key("nodes"), self.node_id.to_string());
        let del = Cmd::del(self.keys.key(format_args!("node:{}", self.node_id)));
        pipe.add_command(zrem).ignore().add_command(del).ignore();
        Ok(pipe.query_async(&mut self.commands).await?)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
