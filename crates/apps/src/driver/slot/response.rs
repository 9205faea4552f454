//! What a slot's driver makes of a worker's response: a whole answer, a stream, a file, a fault.
//!
//! What must stay true: each request gets one answer; a declared length is kept or the client is cut.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::buffering::{SpoolSpec, SpoolWriter, spool};
use penstock_exchange::{Body, Fault, FaultKind, FileBody, RequestTiming, Response};
use penstock_runtime::{DiskFile, Stream, clock, loops};
use penstock_sys::page_cache;

use super::{OpenResponse, SlotDriver};
use crate::driver::hijack;
use crate::reply::{self, ReplyHead, app_protocol_error};
use crate::shared::{AppShared, SlotPlace};

impl SlotDriver {
    /// A head has come: answers if it is all, holds it back if a file may follow.
    pub(super) fn begin_response(
        &mut self,
        head: Result<ReplyHead, Fault>,
        body: &[u8],
        body_len: Option<u32>,
        end: bool,
    ) {
        let mut head = match head {
            Ok(head) => head,
            Err(fault) => {
                self.answer_request(Err(fault));
                self.discard_response(end);
                return;
            }
        };
        if let Some(redirect) = head.redirect.take() {
            if let Some(entry) = self.in_flight.front_mut() {
                entry.start.job.redirect(redirect);
            }
            self.discard_response(end);
            return;
        }
        if !head.wants_body {
            let ReplyHead {
                mut response,
                declared,
                ..
            } = head;
            let length = declared.or_else(|| body_len.filter(|len| *len > 0).map(u64::from));
            response.body = Body::Omitted(length);
            self.answer_request(Ok(response));
            self.discard_response(end);
            return;
        }
        let whole = body_len.filter(|len| end && *len as usize == body.len());
        if whole.is_some() {
            self.answer_request(reply::with_whole_body(head, body));
        } else if body.is_empty() && body_len.is_none() {
            self.held_head = Some(head);
        } else {
            let length = body_len.map(u64::from);
            match reply::check_declared(&head, length) {
                Err(fault) => {
                    self.answer_request(Err(fault));
                    self.discard_response(end);
                }
                Ok(()) => self.begin_stream_with_length(head, length, body),
            }
        }
    }

    pub(super) fn begin_stream(&mut self, head: ReplyHead, first: &[u8]) {
        self.begin_stream_with_length(head, None, first);
    }

    /// What has come of the body is there before the answer is: both leave in one piece, whichever
    /// loop sends them.
    fn begin_stream_with_length(&mut self, head: ReplyHead, length: Option<u64>, first: &[u8]) {
        let ReplyHead {
            mut response,
            declared,
            is_unbuffered,
            ..
        } = head;
        let store = self.app.body_store.load_full();
        let client = self
            .in_flight
            .front()
            .and_then(|entry| entry.start.job.client.limit_prefix());
        let spec = SpoolSpec {
            client,
            producer: Some(Arc::<SlotPlace>::clone(&self.place)),
            is_unbuffered,
            length: declared.or(length),
        };
        let (mut writer, reader) = spool(store, spec);
        writer.push(first);
        response.body = Body::Stream(Box::new(reader));
        self.open_response = Some(OpenResponse::Spooling(writer));
        self.is_unbuffered = is_unbuffered;
        self.answer_request(Ok(response));
    }

    pub(super) fn answer_request(&mut self, answer: Result<Response, Fault>) {
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        if let Err(fault) = &answer
            && matches!(
                fault.kind,
                FaultKind::AppRaised | FaultKind::AppProtocolError
            )
        {
            self.app.metrics.failed_requests.increment();
        }
        entry.start.job.answer(answer);
    }

    /// The application answers by itself, on the other end of `socket`.
    pub(super) fn hand_over_hijacked(&mut self, socket: OwnedFd) {
        let hijacked = self.hijacked_connections.register();
        self.open_response = Some(OpenResponse::Hijacked(hijacked.progress()));
        let app_time = clock::now().saturating_duration_since(self.progress_at);
        let timing = self.response_timing(u32::try_from(app_time.as_micros()).unwrap_or(u32::MAX));
        let Some(entry) = self.in_flight.front_mut() else {
            return;
        };
        let mut job = entry.start.job.split_reply();
        match Stream::from_received(socket) {
            Ok(socket) => {
                let app = Arc::clone(&self.app);
                loops::spawn_here(hijack::serve_hijacked(app, job, socket, hijacked, timing));
            }
            Err(error) => job.answer(Err(app_protocol_error(format!(
                "its hijacked connection: {error}"
            ))
            .with_timing(timing))),
        }
        // Nothing of what stands behind it has been sent.
        self.give_back_unsent();
    }

    pub(super) fn finish_spool(&mut self, spool: SpoolWriter) {
        if spool.has_overflow() {
            // What is not in memory yet is brought to the file beside this driver, which is free for
            // the next request.
            loops::spawn_here(async move {
                let mut spool = spool;
                spool.release_place();
                let end = spool.flush().await;
                spool.finish(end.map(|()| None));
            });
        } else {
            spool.finish(Ok(None));
        }
    }

    pub(super) fn response_timing(&mut self, app_time_us: u32) -> RequestTiming {
        let app = Duration::from_micros(u64::from(app_time_us));
        self.app.recent_latency.record(app);
        let mut timing = RequestTiming {
            app_time: app,
            handler: Some((&self.app.name).into()),
            worker_pid: self.pid,
            ..RequestTiming::default()
        };
        if let Some(entry) = self.in_flight.front() {
            timing.queue_time = entry.start.waited;
            if entry.is_batched {
                let held = self
                    .progress_at
                    .saturating_duration_since(entry.handed_over_at);
                timing.queue_time += held.saturating_sub(app);
            }
            timing.queue_position = u32::try_from(entry.start.queue_position).unwrap_or(u32::MAX);
        }
        self.app.metrics.app_time.record(app);
        self.app.metrics.queue_time.record(timing.queue_time);
        timing
    }
}

/// A response whose body is a part of a file that the application opened.
pub(super) fn file_response(
    head: ReplyHead,
    file: File,
    offset: u64,
    len: Option<u64>,
    app: &AppShared,
) -> Result<Response, Fault> {
    let timing = head.response.timing.clone();
    // Its worker has just opened it: what is known of it in memory is true, wherever it lies.
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
    reply::check_declared(&head, Some(len))?;
    let ReplyHead { mut response, .. } = head;
    response.body = Body::File(FileBody {
        file: Arc::new(DiskFile::new(file, app.body_store.load().pool.clone())),
        start: offset,
        len,
    });
    Ok(response)
}
