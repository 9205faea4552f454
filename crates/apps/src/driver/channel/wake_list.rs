//! The list of streams that the driver of many streams has to look at.
//!
//! Each stream has a waker, which puts the stream's index here and wakes the driver. An index whose
//! stream has ended meanwhile is harmless: the driver looks at the stream that has it now.
//!
//! # Invariants
//! - An index is here at most once.
//! - No waker runs under the lock.
//! - A waker does not keep the list alive after its driver has ended.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

use crate::upload::store_waker;

/// The indices of a driver's streams that were woken.
#[derive(Debug, Default)]
pub(super) struct WakeList {
    state: Mutex<WakeListState>,
}

#[derive(Debug, Default)]
struct WakeListState {
    woken: VecDeque<Arc<StreamWaker>>,
    driver: Option<Waker>,
}

/// The waker of the streams that have one index, one after the other.
#[derive(Debug)]
pub(super) struct StreamWaker {
    index: u32,
    is_listed: AtomicBool,
    wake_list: Weak<WakeList>,
}

impl WakeList {
    pub(super) fn waker(self: &Arc<Self>, index: u32) -> Waker {
        Waker::from(Arc::new(StreamWaker {
            index,
            is_listed: AtomicBool::new(false),
            wake_list: Arc::downgrade(self),
        }))
    }

    /// The next index to look at; without one the task is woken when there is one.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Option<u32> {
        let mut state = self.state.lock();
        if let Some(stream) = state.woken.pop_front() {
            drop(state);
            stream.is_listed.store(false, Ordering::Release);
            return Some(stream.index);
        }
        store_waker(&mut state.driver, cx);
        None
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        if self.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let Some(wake_list) = self.wake_list.upgrade() else {
            return;
        };
        let mut state = wake_list.state.lock();
        state.woken.push_back(self);
        let driver = state.driver.take();
        drop(state);
        driver.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listed_stream_keeps_nothing_alive_without_the_driver() {
        let wake_list = Arc::new(WakeList::default());
        let waker = wake_list.waker(3);
        waker.wake_by_ref();
        let rest = Arc::downgrade(&wake_list);
        drop(wake_list);
        assert!(rest.upgrade().is_none());
        // A waker that is left wakes nothing.
        waker.wake();
    }

    #[test]
    fn a_stream_is_listed_once_until_it_is_taken() {
        let wake_list = Arc::new(WakeList::default());
        let waker = wake_list.waker(3);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..2 {
            waker.wake_by_ref();
            waker.wake_by_ref();
            assert_eq!(wake_list.poll_next(&mut cx), Some(3));
            assert_eq!(wake_list.poll_next(&mut cx), None);
        }
    }
}
