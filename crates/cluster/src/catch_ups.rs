//! Waits until this server has what others had: for subscribers that continue here.
//!
//! Pure. `bus_driver` adds a wait, tells of its pings of Redis, and asks after each of its turns
//! what has ended. A wait ends when Redis has this server's early messages, a ping that was sent
//! after that is answered, and each channel is live: then every message that was published before
//! the wait has been delivered here, in an order that other servers know.
//!
//! # Invariants
//! - A wait that is not answered ends with its sender, which its owner bounds.

use std::time::Instant;

use tokio::sync::oneshot;

use crate::bus_state_machine::BusStateMachine;
use crate::entry::ChannelName;

/// All waits of this server.
#[derive(Debug, Default)]
pub(super) struct CatchUps {
    waits: Vec<CatchUp>,
    last_ping_at: Option<Instant>,
    /// When the last ping was sent that is answered.
    last_pong_of: Option<Instant>,
}

#[derive(Debug)]
struct CatchUp {
    channels: Vec<ChannelName>,
    sender: oneshot::Sender<()>,
    /// Since when Redis has this server's early messages.
    in_step_since: Option<Instant>,
}

impl CatchUps {
    pub(super) fn add(&mut self, channels: Vec<ChannelName>, sender: oneshot::Sender<()>) {
        self.waits.push(CatchUp {
            channels,
            sender,
            in_step_since: None,
        });
    }

    /// A ping is sent.
    pub(super) fn note_ping(&mut self, now: Instant) {
        self.last_ping_at = Some(now);
    }

    /// All that was published before the ping of that time has come.
    pub(super) fn note_pong(&mut self, at: Instant) {
        self.last_pong_of = Some(at);
    }

    /// Redis is not reached any more.
    pub(super) fn clear(&mut self) {
        self.waits.clear();
    }

    /// Ends what has caught up; whether a ping is needed for the rest.
    pub(super) fn advance(&mut self, now: Instant, machine: &BusStateMachine) -> bool {
        // Its owner waits no more.
        self.waits.retain(|wait| !wait.sender.is_closed());
        let mut needs_ping = false;
        for mut wait in std::mem::take(&mut self.waits) {
            if !machine.is_in_step() {
                wait.in_step_since = None;
                self.waits.push(wait);
                continue;
            }
            let since = *wait.in_step_since.get_or_insert(now);
            let has_come = self.last_pong_of.is_some_and(|at| at >= since);
            if has_come && machine.followed_channels.are_live(&wait.channels) {
                // Its owner may wait no more.
                let _ = wait.sender.send(());
                continue;
            }
            needs_ping |= self.last_ping_at.is_none_or(|at| at < since);
            self.waits.push(wait);
        }
        needs_ping
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entry::{NodeId, RedisClock, RedisDataset};
    use crate::followed_channel::StreamPage;

    fn connect(machine: &mut BusStateMachine, now: Instant) {
        let data = RedisDataset {
            id: "data".into(),
            run_id: None,
            clock: RedisClock {
                read_at: now,
                ms: 0,
            },
        };
        machine.on_connected(now, &data, Duration::from_secs(60));
    }

    /// Answers what the machine asks of an empty Redis.
    fn answer_reads(machine: &mut BusStateMachine, now: Instant) {
        for _ in 0..2 {
            let channels = machine.followed_channels.next_subscriptions();
            machine.followed_channels.confirm_subscribed(&channels);
            for read in machine.next_reads(now) {
                let page = StreamPage {
                    channel: read.channel,
                    read_id: read.read_id,
                    entries: Vec::new(),
                    is_last: true,
                };
                machine.apply_page(now, page);
            }
        }
    }

    #[test]
    fn a_wait_ends_when_everything_from_before_it_has_come() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut machine = BusStateMachine::new(NodeId(1), start);
        let mut waits = CatchUps::default();
        let (sender, mut told) = oneshot::channel();
        let channel = ChannelName::from("news");
        machine.follow_channel(start, &channel);
        waits.add(vec![channel], sender);
        assert!(
            !waits.advance(start, &machine),
            "without Redis a ping says nothing"
        );
        connect(&mut machine, start);
        // A ping from before does not count.
        waits.note_ping(start);
        assert!(waits.advance(start + second, &machine));
        waits.note_pong(start);
        assert!(waits.advance(start + second, &machine));
        waits.note_ping(start + second);
        assert!(
            !waits.advance(start + second, &machine),
            "one ping is enough"
        );
        waits.note_pong(start + second);
        waits.advance(start + second, &machine);
        assert!(told.try_recv().is_err(), "the channel is not read yet");
        answer_reads(&mut machine, start + second);
        waits.advance(start + second, &machine);
        assert_eq!(told.try_recv(), Ok(()));
    }

    #[test]
    fn a_wait_does_not_end_while_this_server_is_ahead_of_redis() {
        let now = Instant::now();
        let mut machine = BusStateMachine::new(NodeId(1), now);
        machine.publish(now, penstock_hub::Publication::default());
        connect(&mut machine, now);
        let mut waits = CatchUps::default();
        let (sender, mut told) = oneshot::channel();
        waits.add(Vec::new(), sender);
        waits.note_pong(now);
        assert!(!waits.advance(now, &machine));
        let batch = machine.next_batch(now).unwrap();
        machine.on_batch_accepted(now, &batch);
        waits.advance(now, &machine);
        assert_eq!(told.try_recv(), Ok(()));
        // A wait without its owner is forgotten, and so are all without Redis.
        let (sender, receiver) = oneshot::channel();
        waits.add(Vec::new(), sender);
        drop(receiver);
        machine.on_disconnected(now);
        waits.advance(now, &machine);
        let (sender, mut told) = oneshot::channel();
        waits.add(Vec::new(), sender);
        waits.clear();
        assert!(told.try_recv().is_err() && waits.waits.is_empty());
    }
}
