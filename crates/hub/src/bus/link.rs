//! The connections to Redis, and every question that is asked over them.
//!
//! Two connections: one for commands, one that hears what is published (RESP3, so Redis 6 or later, or
//! Valkey). Made and asked by `driver`. What must stay true: every question has a deadline; an answer that
//! is not understood is an error that says so, never a panic; no password gets into an error or a log.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_runtime::clock;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisError,
};
use tokio::sync::Notify;

use super::answers::{AHEAD, Answers, OtherData, PAGE, RawEntry, SHARED};
use super::encoding;
use super::entry::{Channel, Clock, Data, NodeId, Origin, What};
use super::follow::{Part, Read};
use super::outbox::Outgoing;
use super::pushes::{Pushes, PushesEnd};
use super::script::{self, Names};
use super::totals::Totals;

/// How long a connection may take, and an answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a node counts as there after it was heard of.
const PRESENT_FOR: Duration = Duration::from_secs(10);

/// Why the connection to Redis is of no use. The texts are for the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("{0}")]
    Redis(String),
    #[error("{0}")]
    Pushes(#[from] PushesEnd),
    #[error("it answers with something else than it was asked for")]
    Answer,
    #[error("{0}")]
    OtherData(#[from] OtherData),
}

impl From<RedisError> for LinkError {
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
pub(super) struct Target {
    client: Client,
    /// Its address as it is logged.
    pub(super) address: Arc<str>,
    names: Names,
}

/// A connected Redis. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    me: NodeId,
    names: Names,
    commands: MultiplexedConnection,
    hearing: MultiplexedConnection,
    publish: Arc<str>,
    beat: Arc<str>,
    /// What is there.
    pub(super) data: Data,
    pub(super) pushes: Arc<Pushes>,
    /// Understands what it says.
    pub(super) answers: Answers,
}

/// How much of a channel Redis keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Keeping {
    /// Channels that may be followed.
    pub(super) channels: usize,
    /// Entries of a stream.
    pub(super) entries: usize,
    /// How long after its last entry.
    pub(super) age: Duration,
}

impl Target {
    /// Understands the setting.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let broken = |_| "it is not an address of a Redis".to_owned();
        let info = url.into_connection_info().map_err(broken)?;
        let settings = info.redis_settings().clone();
        let names = Names::of(settings.db());
        let address: Arc<str> = info.addr().to_string().into();
        let settings = settings.set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings)).map_err(broken)?;
        Ok(Self {
            client,
            address,
            names,
        })
    }

    /// Connects, and finds out which data is there; `fresh` marks it if it has no mark.
    pub(super) async fn connect(
        self,
        me: NodeId,
        fresh: String,
        kept: Duration,
        bell: Arc<Notify>,
    ) -> Result<Link, LinkError> {
        let pushes = Arc::new(Pushes::new(bell));
        let pushed = pushes.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(ANSWER_TIMEOUT));
        let hears = config.clone().set_push_sender(move |info: PushInfo| {
            pushed.push(info);
            Ok::<(), LinkError>(())
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
        let mark = self.names.mark();
        let (publish, beat, begin, mark, time): (String, String, String, String, (u64, u64)) =
            redis::pipe()
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script::PUBLISH)
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script::BEAT)
                .cmd("SCRIPT")
                .arg("LOAD")
                .arg(script::BEGIN)
                .cmd("SET")
                .arg(&mark)
                .arg(fresh)
                .arg("NX")
                .ignore()
                .cmd("GET")
                .arg(&mark)
                .cmd("TIME")
                .query_async(&mut commands)
                .await?;
        let (seconds, micros) = time;
        let clock = Clock {
            at: clock::now(),
            ms: seconds.saturating_mul(1000).saturating_add(micros / 1000),
        };
        let run = run_of(&mut commands).await?;
        if let Some(run) = &run {
            // Said by nobody in particular, so that whoever comes first can say it.
            let origin = Origin {
                node: NodeId(RandomState::new().hash_one(run)),
                number: 1,
            };
            let mut command = redis::cmd("EVALSHA");
            command.arg(begin).arg(1).arg(self.names.run()).arg(&**run);
            command.arg(&*self.names.prefix).arg(origin.to_string());
            let word = encoding::encode(&What::CutEverywhere);
            command.arg(word).arg(millis(kept)).arg(&mark);
            let () = command.query_async(&mut commands).await?;
        }
        let mark: Arc<str> = mark.into();
        Ok(Link {
            me,
            answers: Answers::new(self.names.clone(), mark.clone()),
            names: self.names,
            commands,
            hearing,
            publish: publish.into(),
            beat: beat.into(),
            data: Data { mark, run, clock },
            pushes,
        })
    }
}

/// Which run of Redis this is; none where it does not tell.
async fn run_of(commands: &mut MultiplexedConnection) -> Result<Option<Arc<str>>, LinkError> {
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

impl Link {
    /// Gives Redis a batch.
    pub(super) async fn publish(
        mut self,
        batch: Vec<Outgoing>,
        keeping: Keeping,
    ) -> Result<Vec<Outgoing>, LinkError> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&*self.publish)
            .arg(2)
            .arg(self.names.sent(self.me))
            .arg(self.names.mark())
            .arg(self.me.to_string())
            .arg(&*self.data.mark)
            .arg(keeping.entries)
            .arg(millis(keeping.age))
            .arg(&*self.names.prefix);
        for entry in &batch {
            command
                .arg(entry.number)
                .arg(&*entry.channel)
                .arg(if entry.is_ahead { AHEAD } else { SHARED })
                .arg(encoding::encode(&entry.what));
        }
        let is_taken: bool = command.query_async(&mut self.commands).await?;
        if is_taken {
            Ok(batch)
        } else {
            Err(OtherData.into())
        }
    }

    /// Subscribes to channels.
    pub(super) async fn subscribe(
        mut self,
        channels: Vec<Channel>,
    ) -> Result<Vec<Channel>, LinkError> {
        let topics: Vec<String> = channels.iter().map(|c| self.names.topic(c)).collect();
        self.hearing.subscribe(topics).await?;
        Ok(channels)
    }

    /// Unsubscribes from channels.
    pub(super) async fn unsubscribe(mut self, channels: Vec<Channel>) -> Result<(), LinkError> {
        let topics: Vec<String> = channels.iter().map(|c| self.names.topic(c)).collect();
        Ok(self.hearing.unsubscribe(topics).await?)
    }

    /// Asks whether it is there. All that was published to this node before the question comes before the answer.
    pub(super) async fn ping(mut self, now: Instant) -> Result<Instant, LinkError> {
        let () = redis::cmd("PING").query_async(&mut self.hearing).await?;
        Ok(now)
    }

    /// Reads of streams.
    pub(super) async fn read(
        mut self,
        reads: Vec<Read>,
        keeping: Keeping,
    ) -> Result<Vec<Part>, LinkError> {
        let mut pipe = redis::pipe();
        for read in &reads {
            let stream = self.names.stream(&read.channel);
            match read.from {
                Some(from) => {
                    let from = from.to_string();
                    let range = pipe.cmd("XRANGE").arg(stream).arg(from).arg("+");
                    range.arg("COUNT").arg(PAGE);
                }
                None => {
                    let range = pipe.cmd("XREVRANGE").arg(stream).arg("+").arg("-");
                    // More than clients may come back for: it also tells which nodes had published what.
                    range.arg("COUNT").arg(keeping.entries.max(1));
                }
            }
        }
        let answers: Vec<Vec<RawEntry>> = pipe.query_async(&mut self.commands).await?;
        if answers.len() != reads.len() {
            return Err(LinkError::Answer);
        }
        let parts = reads.into_iter().zip(answers);
        Ok(parts
            .map(|(read, raw)| self.answers.part(read, raw))
            .collect())
    }

    /// Says that this node is there and with which numbers; the sums over all nodes.
    pub(super) async fn beat(mut self, numbers: Vec<(String, u64)>) -> Result<Totals, LinkError> {
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(&*self.beat)
            .arg(2)
            .arg(self.names.nodes())
            .arg(self.names.mark())
            .arg(self.me.to_string())
            .arg(millis(PRESENT_FOR))
            .arg(&*self.names.prefix);
        for (name, value) in numbers {
            command.arg(name).arg(value);
        }
        let answer: Vec<String> = command.query_async(&mut self.commands).await?;
        let [mark, nodes, sums @ ..] = &*answer else {
            return Err(LinkError::Answer);
        };
        if **mark != *self.data.mark {
            return Err(OtherData.into());
        }
        Totals::parse(nodes, sums).ok_or(LinkError::Answer)
    }

    /// Takes this node out of the sums.
    pub(super) async fn leave(mut self) -> Result<(), LinkError> {
        let mut pipe = redis::pipe();
        let zrem = Cmd::zrem(self.names.nodes(), self.me.to_string());
        let del = Cmd::del(self.names.node(self.me));
        pipe.add_command(zrem).ignore().add_command(del).ignore();
        Ok(pipe.query_async(&mut self.commands).await?)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
