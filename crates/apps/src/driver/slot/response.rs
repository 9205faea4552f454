//! The responses of a slot: a whole body, a stream, a file or a fault.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::buffering::SpoolWriter;
use penstock_exchange::{Body, Fault, FileBody, Reply, RequestTiming, Response};
use penstock_runtime::{DiskFile, clock, loops};
use penstock_sys::page_cache;

use super::{OpenResponse, SlotDriver};
use crate::driver::response::{HeadFrame, ResponseStart, open_spool, send_and_count_reply};
use crate::reply::{self, ReplyHead, app_protocol_error};
use crate::shared::{AppShared, SlotProducer};

impl SlotDriver {
    /// Begins the first response. Its reply waits for the next frame if that may be a file.
    pub(super) fn begin_response(&mut self, frame: &HeadFrame<'_>, app_time_us: u32) {
        let timing = self.record_response_timing(app_time_us);
        let Some(entry) = self.in_flight.front() else {
            return;
        };
        match frame.start_response(&entry.start.job, timing) {
            ResponseStart::Complete(reply) => {
                self.answer_request(reply);
                self.discard_response(frame.end);
            }
            ResponseStart::Streamed(head, None) if frame.body.is_empty() => {
                self.held_head = Some(head);
            }
            ResponseStart::Streamed(head, length) => self.begin_stream(head, length, frame.body),
        }
    }

    /// Replies with a streamed body. Its first bytes are in the spool before that, so that head and
    /// body leave in one write, whichever loop sends them.
    pub(super) fn begin_stream(&mut self, head: ReplyHead, length: Option<u64>, first: &[u8]) {
        let Some(entry) = self.in_flight.front() else {
            return;
        };
        self.is_unbuffered = head.is_unbuffered;
        let producer = Arc::<SlotProducer>::clone(&self.core.producer);
        let (app, job) = (&self.core.app, &entry.start.job);
        let (mut writer, response) = open_spool(app, job, head, length, Some(producer));
        writer.push(first);
        self.open_response = Some(OpenResponse::Spooling(writer));
        self.answer_request(Ok(response.into()));
    }

    pub(super) fn answer_request(&mut self, reply: Result<Reply, Fault>) {
        if let Some(entry) = self.in_flight.front_mut() {
            send_and_count_reply(&self.core.app, &mut entry.start.job, reply);
        }
    }

    /// Hands over a hijacked connection; `socket` is its other end.
    pub(super) fn hand_over_hijacked(&mut self, socket: OwnedFd) {
        let hijacked = self.core.hijacked_connections.register();
        self.open_response = Some(OpenResponse::Hijacked(hijacked.shared_progress()));
        let app_time = clock::now().saturating_duration_since(self.progress_at);
        let timing =
            self.record_response_timing(u32::try_from(app_time.as_micros()).unwrap_or(u32::MAX));
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        let job = entry.start.job.split_reply();
        self.core.spawn_hijacked(job, socket, hijacked, timing);
        // None of the requests behind it has been sent.
        self.give_back_unsent();
    }

    pub(super) fn finish_spool(&mut self, spool: SpoolWriter) {
        if spool.has_overflow() {
            // A task writes the rest to the spool's file, so that this driver is free for the next
            // request.
            loops::spawn_here(async move {
                let mut spool = spool;
                spool.release_capacity();
                let end = spool.flush().await;
                spool.finish(end.map(|()| None));
            });
        } else {
            spool.finish(Ok(None));
        }
    }

    pub(super) fn record_response_timing(&mut self, app_time_us: u32) -> RequestTiming {
        let app_time = Duration::from_micros(u64::from(app_time_us));
        self.core.app.recent_latency.record(app_time);
        let entry = self.in_flight.front();
        let start = entry.map(|entry| &entry.start);
        let mut timing = self.core.request_timing(start, app_time);
        if let Some(entry) = entry.filter(|entry| entry.is_batched) {
            let held = self
                .progress_at
                .saturating_duration_since(entry.handed_over_at);
            timing.queue_time += held.saturating_sub(app_time);
        }
        self.core.app.metrics.app_time.record(app_time);
        self.core.app.metrics.queue_time.record(timing.queue_time);
        timing
    }
}

/// A response whose body is part of a file that the application opened.
pub(super) fn file_response(
    head: ReplyHead,
    file: File,
    offset: u64,
    len: Option<u64>,
    app: &AppShared,
) -> Result<Response, Fault> {
    let timing = head.response.timing.clone();
    // The worker has just opened the file, so its metadata is in memory whatever the disk.
    let size = match page_cache::regular_file_size(&file) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return Err(
                app_protocol_error("the body file is not a regular file").with_timing(timing)
            );
        }
        Err(error) => {
            return Err(app_protocol_error(format!("the body file: {error}")).with_timing(timing));
        }
    };
    let there = size.saturating_sub(offset);
    let len = len.map_or(there, |len| len.min(there));
    reply::check_declared_length(&head, Some(len))?;
    let ReplyHead { mut response, .. } = head;
    response.body = Body::File(FileBody {
        file: Arc::new(DiskFile::new(
            file,
            app.buffering_settings.load().pool.clone(),
        )),
        start: offset,
        len,
    });
    Ok(response)
}
