//! The scripts that run inside Redis, and the names of its keys. Used by `redis_link`.
//!
//! A publication is one step there: it gets its place in its channel's stream and goes to all
//! servers, or neither. The names of streams are made inside the scripts, so that one call can
//! have many channels: this is for one Redis (or one with replicas), not for a Redis Cluster.
//!
//! # Invariants
//! - The numbers of a server are taken in order, and none twice.
//! - Every key expires by itself.

use std::fmt::Display;
use std::sync::LazyLock;

use redis::Script;

use crate::entry::ChannelName;

/// Takes a batch. Keys: the server's last number, the mark of the data. Arguments: server, mark,
/// the stream's length and age in milliseconds, the prefix; then number, channel, way and message
/// of each. The answer: 1, or 0 when the data is not the one that was meant.
///
/// `sent` lives for an hour: what an earlier connection left in Redis' socket is long done by then.
pub(super) static PUBLISH_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local mark = redis.call('GET', KEYS[2])
if mark ~= ARGV[2] then return 0 end
local last = tonumber(redis.call('GET', KEYS[1]) or '0')
for i = 6, #ARGV, 4 do
  local number = tonumber(ARGV[i])
  if number > last then
    local stream = ARGV[5] .. 'stream:' .. ARGV[i + 1]
    local top = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
    local before = top[1] and top[1][1] or '0-0'
    local origin = ARGV[1] .. ':' .. ARGV[i]
    local position = redis.call('XADD', stream, 'MAXLEN', '~', ARGV[3], '*', 'before', before,
      'origin', origin, 'way', ARGV[i + 2], 'message', ARGV[i + 3])
    redis.call('PEXPIRE', stream, ARGV[4])
    local head = table.concat({ position, before, origin, ARGV[i + 2], mark }, ' ')
    redis.call('PUBLISH', ARGV[5] .. 'topic:' .. ARGV[i + 1], head .. '\n' .. ARGV[i + 3])
    redis.call('SET', KEYS[1], ARGV[i], 'PX', 3600000)
    last = number
  end
end
return 1
",
    )
});

/// Notes which run of Redis this is. A run that is not the noted one may have begun with older
/// data: its servers then learn, once, that histories begin anew. Keys: the noted run. Arguments:
/// the run, the prefix, the origin and the message of the word, its age in milliseconds, the mark
/// of the data.
pub(super) static RECORD_RUN_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
local stream = ARGV[2] .. 'stream:'
local top = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
local before = top[1] and top[1][1] or '0-0'
local position = redis.call('XADD', stream, 'MAXLEN', '~', 100, '*', 'before', before,
  'origin', ARGV[3], 'way', 'shared', 'message', ARGV[4])
redis.call('PEXPIRE', stream, ARGV[5])
local head = table.concat({ position, before, ARGV[3], 'shared', ARGV[6] }, ' ')
redis.call('PUBLISH', ARGV[2] .. 'topic:', head .. '\n' .. ARGV[4])
return 1
",
    )
});

/// Notes a server's numbers and answers with the mark of the data, how many servers there are, and
/// the sums of all their numbers, as names and values in turn. Keys: the servers, the mark of the
/// data. Arguments: the server, how many milliseconds it counts as there, the prefix; then names
/// and values.
pub(super) static REPORT_SCRIPT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local own = ARGV[3] .. 'node:' .. ARGV[1]
for i = 4, #ARGV, 2 do redis.call('HSET', own, ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', own, ARGV[2])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
local nodes = redis.call('ZRANGE', KEYS[1], 0, -1)
local sums, names = {}, {}
for _, node in ipairs(nodes) do
  local numbers = redis.call('HGETALL', ARGV[3] .. 'node:' .. node)
  for i = 1, #numbers, 2 do
    if not sums[numbers[i]] then sums[numbers[i]] = 0; names[#names + 1] = numbers[i] end
    sums[numbers[i]] = sums[numbers[i]] + tonumber(numbers[i + 1])
  end
end
local answer = { redis.call('GET', KEYS[2]) or '', tostring(#nodes) }
for _, name in ipairs(names) do
  answer[#answer + 1] = name
  answer[#answer + 1] = string.format('%.0f', sums[name])
end
return answer
",
    )
});

/// The names in one database: pushes are not separated by database, so its number is in all names.
///
/// `mark` tells a Redis that has lost its data, `run` the run of Redis that wrote its data last.
/// `nodes` are the servers, `node:NODE` the counters of one, `sent:NODE` its last number.
/// `rate:KEY` is the time at which the key of a rate is idle again. `stream:CHANNEL` has the last entries of a channel, which `topic:CHANNEL` publishes.
#[derive(Debug, Clone)]
pub(super) struct RedisKeys {
    /// Of the form `penstock:0:`.
    pub(super) prefix: String,
}

impl RedisKeys {
    pub(super) fn for_database(database: i64) -> Self {
        Self {
            prefix: format!("penstock:{database}:"),
        }
    }

    pub(super) fn key(&self, name: impl Display) -> String {
        format!("{}{name}", self.prefix)
    }

    pub(super) fn topic(&self, channel: &ChannelName) -> String {
        self.key(format_args!("topic:{channel}"))
    }

    pub(super) fn channel_of_topic<'a>(&self, topic: &'a str) -> Option<&'a str> {
        topic.strip_prefix(&*self.prefix)?.strip_prefix("topic:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_leads_back_to_its_channel() {
        let names = RedisKeys::for_database(3);
        for channel in ["", "news", "a:topic:b", "é x"] {
            let topic = names.topic(&ChannelName::from(channel));
            assert!(topic.starts_with("penstock:3:"));
            assert_eq!(names.channel_of_topic(&topic), Some(channel));
        }
        assert_eq!(names.channel_of_topic("penstock:4:topic:news"), None);
        assert_eq!(names.channel_of_topic("penstock:3:stream:news"), None);
    }
}
