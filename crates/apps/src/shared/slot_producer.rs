//! One slot as the producer of spooled responses.
//!
//! The slot's driver makes it and hands it to the spools of its responses. They ask here which
//! requests wait for the slot while a slow client holds it.
//!
//! # Invariants
//! - Nothing waits for a slot that takes no more requests.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use penstock_exchange::buffering::{CapacityDemand, ResponseProducer, SlowResponses};
use penstock_exchange::{AddressPrefix, Fault, FaultKind};
use penstock_queue::SlotId;
use penstock_runtime::clock;

use super::AppShared;

#[derive(Debug)]
pub(crate) struct SlotProducer {
    app: Arc<AppShared>,
    slot: SlotId,
    /// Since when requests wait that are pipelined behind the current response.
    pipelined_since: Mutex<Option<Instant>>,
}

impl SlotProducer {
    pub(crate) fn new(app: &Arc<AppShared>, slot: SlotId) -> Arc<Self> {
        Arc::new(Self {
            app: Arc::clone(app),
            slot,
            pipelined_since: Mutex::default(),
        })
    }

    /// Records since when requests wait behind the current response, if any do.
    pub(crate) fn set_pipelined_since(&self, since: Option<Instant>) {
        *self.pipelined_since.lock() = since;
    }
}

impl ResponseProducer for SlotProducer {
    fn slow_responses(&self) -> &SlowResponses {
        &self.app.slow_responses
    }

    fn capacity_demand(&self, now: Instant) -> CapacityDemand {
        let pipelined_since = *self.pipelined_since.lock();
        let pipelined_wait = pipelined_since.map(|since| now.saturating_duration_since(since));
        match self.app.dispatch.queue_usage_for_slot(now, self.slot) {
            Some(queue) => CapacityDemand {
                waiting_requests: queue.waiting,
                oldest_wait: queue.oldest_wait,
                max_active_requests: queue.slots,
                pipelined_wait,
            },
            None => CapacityDemand {
                pipelined_wait,
                ..CapacityDemand::default()
            },
        }
    }

    fn waiting_clients(&self) -> Vec<Option<AddressPrefix>> {
        self.app.dispatch.waiting_clients()
    }

    fn refuse_waiting(&self, clients: &[AddressPrefix], cause: &str) {
        let now = clock::now();
        for (mut job, waited) in self.app.dispatch.take_waiting_jobs_of(now, clients) {
            let timing = self.app.wait_timing(waited);
            let fault = Fault::new(FaultKind::Overloaded, cause.to_owned());
            job.answer(Err(fault.with_timing(timing)));
        }
    }

    fn label(&self) -> String {
        format!("application {}", self.app.name)
    }
}
