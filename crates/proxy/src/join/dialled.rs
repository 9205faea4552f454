//! Connections that a member has dialled in with and that no request has had yet.
//!
//! `front` puts them here, [`crate::connection::Connection::open`] takes them, on any loop. What must stay true: who finds none
//! asks for one, and is woken by the next that comes, unless another was quicker, and then it asks again.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_runtime::Stream;
use tokio::sync::Notify;

/// See the head of this file.
#[derive(Debug)]
pub(crate) struct Dialled {
    /// Held for a look.
    state: Mutex<State>,
    come: Notify,
    asked: Notify,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<OwnedFd>,
    /// To be asked for.
    wanted: u32,
    /// That may wait, or be asked for at once.
    most: u32,
    has_left: bool,
    /// None comes any more.
    is_last: bool,
}

/// Connections that wait for a request, at most: no member has so many in progress that none is given back.
const WAITING_MAX: u32 = 1024;

impl Dialled {
    /// Of a member with that capacity; `first` are asked for at once.
    pub(super) fn new(capacity: u32, first: u32) -> Self {
        let most = capacity.min(WAITING_MAX);
        let state = State {
            waiting: VecDeque::new(),
            wanted: first.min(most),
            most,
            has_left: false,
            is_last: false,
        };
        Self {
            state: Mutex::new(state),
            come: Notify::new(),
            asked: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The member has another capacity.
    pub(super) fn set_capacity(&self, capacity: u32) {
        self.lock().most = capacity.min(WAITING_MAX);
    }

    /// Takes one, on this loop; waits until it is there. The caller bounds the wait.
    ///
    /// # Errors
    /// The member has left, or descriptors ran out.
    pub(crate) async fn take(&self) -> io::Result<Stream> {
        loop {
            let mut come = pin!(self.come.notified());
            come.as_mut().enable();
            if let Some(socket) = self.pop()? {
                let stream = Stream::new(socket)?;
                // It may have waited for long.
                if stream.is_open() {
                    return Ok(stream);
                }
                continue;
            }
            if !self.ask() {
                return Err(gone("the server brings no more connections here"));
            }
            come.await;
        }
    }

    fn pop(&self) -> io::Result<Option<OwnedFd>> {
        let mut state = self.lock();
        match state.has_left {
            true => Err(gone("the server has left")),
            false => Ok(state.waiting.pop_back()),
        }
    }

    /// Whether one may come.
    fn ask(&self) -> bool {
        let may_come = {
            let mut state = self.lock();
            state.wanted = (state.wanted + 1).min(state.most);
            !state.is_last
        };
        self.asked.notify_one();
        may_come
    }

    /// None comes any more: who dials meets another front end.
    pub(super) fn take_last(&self) {
        self.lock().is_last = true;
        self.come.notify_waiters();
    }

    /// How many are to be asked for; waits until there is one. Cancel safety: none is lost.
    pub(super) async fn asked(&self) -> u32 {
        loop {
            let wanted = std::mem::take(&mut self.lock().wanted);
            if wanted > 0 {
                return wanted;
            }
            self.asked.notified().await;
        }
    }

    /// Puts one here, registered with no loop; gives it back where there are too many, or the member has left.
    pub(super) fn put(&self, socket: OwnedFd) -> Result<(), OwnedFd> {
        {
            let mut state = self.lock();
            if state.has_left || state.waiting.len() >= state.most as usize {
                return Err(socket);
            }
            state.waiting.push_back(socket);
        }
        self.come.notify_one();
        Ok(())
    }

    /// How many wait here.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.lock().waiting.len()).unwrap_or(u32::MAX)
    }

    /// Closes those that wait: few will be wanted yet, and each of them can be asked for.
    pub(super) fn close_waiting(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        drop(waiting);
    }

    /// The member has left: who waits is told.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.has_left = true;
            std::mem::take(&mut state.waiting)
        };
        drop(waiting);
        self.come.notify_waiters();
    }
}

fn gone(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, why)
}
