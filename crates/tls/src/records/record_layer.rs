//! A session as the layer of a held connection, which is idle but for an event now and then: no
//! expanded key outlasts a call.

use std::io::{self, IoSlice};

use penstock_exchange::RecordLayer;

use super::{OpenError, RecordSession, RestoreError, SealError};

impl RecordLayer for RecordSession {
    fn seal(&mut self, slices: &[IoSlice<'_>], out: &mut Vec<u8>) -> io::Result<()> {
        let sealed = Self::seal(self, slices, out);
        self.release_keys();
        Ok(sealed?)
    }

    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let opened = Self::open(self, bytes, out);
        self.release_keys();
        let opened = opened?;
        Ok((!opened.is_ended).then_some(opened.data_bytes))
    }

    fn seal_end(&mut self, out: &mut Vec<u8>) {
        self.close_notify(out);
        self.release_keys();
    }

    fn to_bytes(&self) -> Vec<u8> {
        std::mem::take(&mut *Self::to_bytes(self))
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

impl From<SealError> for io::Error {
    fn from(error: SealError) -> Self {
        Self::new(io::ErrorKind::BrokenPipe, error)
    }
}

impl From<OpenError> for io::Error {
    fn from(error: OpenError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl From<RestoreError> for io::Error {
    fn from(error: RestoreError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
