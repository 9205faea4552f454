//! Sets of descriptors to wait for (`epoll`), for users of very many descriptors.
//!
//! Used by `runtime`: each event loop waits at one, and its `Pollset` registers others with a loop,
//! since a set is itself a descriptor that is readable while it has events. All interest is
//! edge-triggered: an event is reported once, and the receiver reads or writes until the socket is
//! exhausted.
//!
//! # Invariants
//! - A token is only a number here; the caller ensures that it still means the same descriptor.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

/// Interest in a descriptor. Errors and the end of the peer's side are always reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
    /// Both.
    Both,
}

/// An event of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The number that the descriptor was added under.
    pub token: u64,
    flags: EventFlags,
}

impl Event {
    /// There is something to read, which may be the end of the stream.
    pub fn is_readable(&self) -> bool {
        self.flags.intersects(EventFlags::IN | EventFlags::RDHUP)
    }

    /// There is room to write.
    pub fn is_writable(&self) -> bool {
        self.flags.contains(EventFlags::OUT)
    }

    /// The peer has ended its side, or the connection broke.
    pub fn is_ended(&self) -> bool {
        let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        self.flags.intersects(ended)
    }

    /// The connection broke, or both sides have ended it.
    pub fn is_broken(&self) -> bool {
        self.flags.intersects(EventFlags::HUP | EventFlags::ERR)
    }
}

/// Maximum number of events that one call reports.
pub const MAX_EVENTS: usize = 256;

/// Creates an empty set.
pub fn create() -> io::Result<OwnedFd> {
    Ok(epoll::create(CreateFlags::CLOEXEC)?)
}

/// Adds `fd` under `token`. Present readiness is reported as an event.
///
/// # Errors
/// When it is in the set already, cannot be waited for, or memory ran out (`max_user_watches`).
pub fn add(
    set: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    token: u64,
    interest: Interest,
) -> io::Result<()> {
    Ok(epoll::add(
        set,
        fd,
        EventData::new_u64(token),
        event_flags(interest),
    )?)
}

/// Changes the interest in `fd`; reports present readiness again.
pub fn modify(
    set: BorrowedFd<'_>,
    fd: BorrowedFd<'_>,
    token: u64,
    interest: Interest,
) -> io::Result<()> {
    Ok(epoll::modify(
        set,
        fd,
        EventData::new_u64(token),
        event_flags(interest),
    )?)
}

/// Removes `fd` from the set.
pub fn remove(set: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::delete(set, fd)?)
}

/// Appends the events since the last call, at most [`MAX_EVENTS`], without waiting. Fewer means
/// that there are no more.
pub fn take_events(set: BorrowedFd<'_>, into: &mut Vec<Event>) -> io::Result<usize> {
    epoll_wait(set, Some(&NO_WAIT), into)
}

/// Like [`take_events`], but waits for an event; a signal may end the wait without one.
pub fn wait_for_events(set: BorrowedFd<'_>, into: &mut Vec<Event>) -> io::Result<usize> {
    epoll_wait(set, None, into)
}

/// Returns which of `fds` have bytes to read, an end or an error, with one system call; independent
/// of other waits for them.
///
/// # Errors
/// When memory ran out, or there are more than the process may open.
pub fn have_events<'f>(fds: impl Iterator<Item = BorrowedFd<'f>>) -> io::Result<Vec<bool>> {
    let news = PollFlags::IN | PollFlags::RDHUP;
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, news)).collect();
    rustix::event::poll(&mut fds, Some(&NO_WAIT))?;
    Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
}

/// Whether a socket is so full that an edge will report when it has room ([`Interest::Write`]),
/// even if no write was refused before.
pub fn is_write_full(socket: BorrowedFd<'_>) -> bool {
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    // On an error the caller attempts the write.
    matches!(rustix::event::poll(&mut asked, Some(&NO_WAIT)), Ok(0))
}

fn epoll_wait(
    set: BorrowedFd<'_>,
    timeout: Option<&Timespec>,
    into: &mut Vec<Event>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::<epoll::Event>::uninit(); MAX_EVENTS];
    let (events, _) = match epoll::wait(set, &mut space, timeout) {
        Err(rustix::io::Errno::INTR) => return Ok(0),
        waited => waited?,
    };
    into.extend(events.iter().map(|event| Event {
        token: event.data.u64(),
        flags: event.flags,
    }));
    Ok(events.len())
}

const NO_WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// Creates a descriptor that becomes readable at each [`wake`], by which another thread ends a
/// wait.
pub fn create_wake_fd() -> io::Result<OwnedFd> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

/// Wakes the loop of this wake fd. Each call raises an edge, so it need not be read.
pub fn wake(bell: BorrowedFd<'_>) {
    // Refused only by a counter of 2^64 - 2 (eventfd(2)).
    let _ = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn event_flags(interest: Interest) -> EventFlags {
    let wanted = match interest {
        Interest::Read => EventFlags::IN,
        Interest::Write => EventFlags::OUT,
        Interest::Both => EventFlags::IN | EventFlags::OUT,
    };
    wanted | EventFlags::RDHUP | EventFlags::ET
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net;
    use std::os::fd::AsFd;

    fn happened(set: &OwnedFd) -> Vec<Event> {
        let mut events = Vec::new();
        take_events(set.as_fd(), &mut events).unwrap();
        events
    }

    #[test]
    fn events_are_reported_once_by_token() {
        let set = create().unwrap();
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        add(set.as_fd(), ours.as_fd(), 7 << 40, Interest::Read).unwrap();
        assert_eq!(happened(&set), []);
        net::send(theirs.as_fd(), b"x").unwrap();
        let [event] = happened(&set)[..] else {
            panic!("one thing happened");
        };
        assert_eq!(event.token, 7 << 40);
        assert!(event.is_readable() && !event.is_writable() && !event.is_ended());
        assert_eq!(happened(&set), [], "it was reported already");
        drop(theirs);
        assert!(happened(&set).iter().all(Event::is_ended));
    }

    #[test]
    fn writability_is_reported_when_interest_begins() {
        let set = create().unwrap();
        let (ours, _theirs) = net::worker_socket_pair().unwrap();
        add(set.as_fd(), ours.as_fd(), 1, Interest::Read).unwrap();
        assert_eq!(happened(&set), []);
        modify(set.as_fd(), ours.as_fd(), 2, Interest::Both).unwrap();
        let [event] = happened(&set)[..] else {
            panic!("there is room");
        };
        assert!(event.token == 2 && event.is_writable());
        modify(set.as_fd(), ours.as_fd(), 2, Interest::Read).unwrap();
        assert_eq!(happened(&set), []);
        remove(set.as_fd(), ours.as_fd()).unwrap();
        assert!(remove(set.as_fd(), ours.as_fd()).is_err());
    }

    #[test]
    fn a_full_socket_is_detected_and_becomes_writable() {
        let set = create().unwrap();
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        add(set.as_fd(), ours.as_fd(), 1, Interest::Write).unwrap();
        assert!(!is_write_full(ours.as_fd()));
        let mut held = net::send(ours.as_fd(), &[0; 4_000_000]).unwrap();
        assert!(is_write_full(ours.as_fd()));
        // Discards earlier events.
        let _ = happened(&set);
        let mut buffer = [0; 65536];
        while held > 0 {
            held -= net::receive(theirs.as_fd(), &mut buffer).unwrap();
        }
        assert!(!is_write_full(ours.as_fd()));
        let [event] = happened(&set)[..] else {
            panic!("there is room");
        };
        assert!(event.is_writable());
    }

    #[test]
    fn have_events_separates_active_from_quiet_sockets() {
        let pairs: Vec<_> = (0..4).map(|_| net::worker_socket_pair().unwrap()).collect();
        let stirred = || have_events(pairs.iter().map(|(ours, _)| ours.as_fd())).unwrap();
        assert_eq!(stirred(), [false; 4]);
        net::send(pairs[1].1.as_fd(), b"x").unwrap();
        net::shutdown(pairs[3].1.as_fd(), net::Shutdown::Write).unwrap();
        assert_eq!(stirred(), [false, true, false, true]);
    }

    #[test]
    fn a_wake_fd_ends_each_wait_without_being_read() {
        let (set, bell) = (create().unwrap(), create_wake_fd().unwrap());
        add(set.as_fd(), bell.as_fd(), 3, Interest::Read).unwrap();
        for round in 0..3 {
            assert_eq!(happened(&set), [], "round {round}");
            wake(bell.as_fd());
            let mut events = Vec::new();
            assert_eq!(wait_for_events(set.as_fd(), &mut events).unwrap(), 1);
            assert!(events[0].token == 3 && events[0].is_readable());
        }
    }

    #[test]
    fn events_beyond_one_batch_come_in_the_next() {
        let set = create().unwrap();
        let pairs: Vec<_> = (0..MAX_EVENTS + 10)
            .map(|_| net::worker_socket_pair().unwrap())
            .collect();
        for (token, (ours, _)) in pairs.iter().enumerate() {
            add(set.as_fd(), ours.as_fd(), token as u64, Interest::Write).unwrap();
        }
        let mut seen: Vec<u64> = [happened(&set), happened(&set)]
            .concat()
            .iter()
            .map(|event| event.token)
            .collect();
        seen.sort_unstable();
        assert!(seen.iter().copied().eq(0..MAX_EVENTS as u64 + 10));
    }
}
