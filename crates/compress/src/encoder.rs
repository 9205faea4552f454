//! The encoders of the three codings behind one call: bytes go in, and with a flush all of them
//! come out.
//!
//! `encoders` makes and keeps them, `stream` and `handler` use them.
//!
//! # Invariants
//! - After [`Flush::Sync`] a decoder has every byte that went in.
//! - The memory of an encoder does not grow with its body ([`EncoderSettings::memory_bytes`],
//!   measured by a test).

use std::fmt;
use std::io::{self, Write};

use brotli::CompressorWriter;
use brotli::enc::BrotliEncoderParams;
use flate2::{Compress, Compression, FlushCompress, Status};
use penstock_config::ContentCoding;
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, get_error_name};

/// A coding with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EncoderSettings {
    pub(crate) coding: ContentCoding,
    pub(crate) level: u32,
    pub(crate) size: EncoderSize,
}

/// How much memory an encoder may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderSize {
    /// As much as helps a page.
    Full,
    /// For events, which are short and whose streams are many and long.
    Small,
}

/// What an encoder gives out beside full blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Nothing: it may keep bytes back.
    None,
    /// All bytes so far.
    Sync,
    /// The end.
    Finish,
}

/// One body on its way through a coding.
pub(crate) enum Encoder {
    Gzip(Compress),
    Zstd(CCtx<'static>),
    Brotli(Box<CompressorWriter<Vec<u8>>>),
    /// Its body has ended.
    Ended,
}

impl EncoderSettings {
    /// The memory that an encoder takes at most: tests measure it. Windows and tables have the sizes
    /// of this file, but `br` has larger tables from level 5 on (33 MiB at level 9, which the
    /// configuration does not offer).
    pub(crate) fn memory_bytes(self) -> usize {
        match (self.coding, self.size, self.level) {
            (ContentCoding::Gzip, _, _) => 384 << 10,
            (ContentCoding::Zstd, EncoderSize::Full, _) => 1280 << 10,
            (ContentCoding::Zstd, EncoderSize::Small, _) => 640 << 10,
            (ContentCoding::Brotli, EncoderSize::Full, ..=4) => 2560 << 10,
            (ContentCoding::Brotli, EncoderSize::Small, ..=4) => 1664 << 10,
            (ContentCoding::Brotli, _, 5) => 4608 << 10,
            (ContentCoding::Brotli, _, _) => 6144 << 10,
        }
    }

    /// The binary logarithms of the window and of the tables of `zstd`.
    fn zstd_logs(self) -> (u32, u32) {
        match self.size {
            EncoderSize::Full => (ZSTD_WINDOW_LOG, ZSTD_TABLE_LOG),
            EncoderSize::Small => (SMALL_ZSTD_WINDOW_LOG, SMALL_ZSTD_TABLE_LOG),
        }
    }

    /// Whether it takes several times as long as the default level.
    pub(crate) fn is_slow(self) -> bool {
        match self.coding {
            ContentCoding::Gzip => self.level > 6,
            ContentCoding::Zstd => self.level > 5,
            ContentCoding::Brotli => self.level > 4,
        }
    }
}

/// The window of `zstd`: 128 KiB, far below the 8 MiB that every decoder has (RFC 8878 §3.1.1.1.2).
/// Responses of applications are seldom larger, and memory grows with it.
const ZSTD_WINDOW_LOG: u32 = 17;

/// Its tables, of four bytes an entry. Those of its levels are for files of megabytes.
const ZSTD_TABLE_LOG: u32 = 15;

/// The same for events.
const SMALL_ZSTD_WINDOW_LOG: u32 = 14;
const SMALL_ZSTD_TABLE_LOG: u32 = 13;

/// The window of `br`, for the same reason.
const BROTLI_WINDOW_LOG: i32 = 18;

/// The same for events, and the least.
const SMALL_BROTLI_WINDOW_LOG: i32 = 16;

/// That of `gzip` is 32 KiB, the most that it has (RFC 1951 §2).
const GZIP_WINDOW_LOG: u8 = 15;

/// Output is made room for in such steps.
const OUTPUT_STEP_BYTES: usize = 4096;

impl Encoder {
    /// An encoder for a body of `size` bytes, if that is known.
    ///
    /// # Errors
    /// The library refuses its settings or has no memory.
    pub(crate) fn new(settings: EncoderSettings, size: Option<u64>) -> io::Result<Self> {
        match settings.coding {
            ContentCoding::Gzip => {
                let level = Compression::new(settings.level);
                Ok(Self::Gzip(Compress::new_gzip(level, GZIP_WINDOW_LOG)))
            }
            ContentCoding::Zstd => {
                let mut context = CCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
                let level = i32::try_from(settings.level).map_err(io::Error::other)?;
                let (window_log, table_log) = settings.zstd_logs();
                for parameter in [
                    CParameter::CompressionLevel(level),
                    CParameter::WindowLog(window_log),
                    CParameter::HashLog(table_log),
                    CParameter::ChainLog(table_log),
                ] {
                    context.set_parameter(parameter).map_err(zstd_error)?;
                }
                context.set_pledged_src_size(size).map_err(zstd_error)?;
                Ok(Self::Zstd(context))
            }
            ContentCoding::Brotli => {
                let params = BrotliEncoderParams {
                    quality: i32::try_from(settings.level).map_err(io::Error::other)?,
                    lgwin: brotli_window_log(settings, size),
                    // A larger one chooses larger tables.
                    size_hint: size.map_or(0, |size| {
                        usize::try_from(size).unwrap_or(usize::MAX).min(1 << 16)
                    }),
                    ..BrotliEncoderParams::default()
                };
                let writer = CompressorWriter::with_params(Vec::new(), OUTPUT_STEP_BYTES, &params);
                Ok(Self::Brotli(Box::new(writer)))
            }
        }
    }

    /// Makes it ready for another body; false if it cannot be used again.
    pub(crate) fn reset(&mut self, size: Option<u64>) -> bool {
        match self {
            Self::Gzip(encoder) => {
                encoder.reset();
                true
            }
            Self::Zstd(context) => {
                context.reset(ResetDirective::SessionOnly).is_ok()
                    && context.set_pledged_src_size(size).is_ok()
            }
            Self::Brotli(_) | Self::Ended => false,
        }
    }

    /// Encodes `input`, and appends the result to `output`.
    ///
    /// # Errors
    /// The library fails, or the body has ended.
    pub(crate) fn encode(
        &mut self,
        input: &[u8],
        flush: Flush,
        output: &mut Vec<u8>,
    ) -> io::Result<()> {
        match self {
            Self::Gzip(encoder) => encode_gzip(encoder, input, flush, output),
            Self::Zstd(context) => encode_zstd(context, input, flush, output),
            Self::Brotli(writer) => {
                writer.write_all(input)?;
                match flush {
                    Flush::None => {}
                    Flush::Sync => writer.flush()?,
                    Flush::Finish => {
                        let Self::Brotli(writer) = std::mem::replace(self, Self::Ended) else {
                            return Err(ended());
                        };
                        output.append(&mut writer.into_inner());
                        return Ok(());
                    }
                }
                output.append(writer.get_mut());
                Ok(())
            }
            Self::Ended => Err(ended()),
        }
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gzip(_) => "Gzip",
            Self::Zstd(_) => "Zstd",
            Self::Brotli(_) => "Brotli",
            Self::Ended => "Ended",
        })
    }
}

fn encode_gzip(
    encoder: &mut Compress,
    mut input: &[u8],
    flush: Flush,
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let flush = match flush {
        Flush::None => FlushCompress::None,
        Flush::Sync => FlushCompress::Sync,
        Flush::Finish => FlushCompress::Finish,
    };
    loop {
        output.reserve(OUTPUT_STEP_BYTES);
        let (read_before, written_before) = (encoder.total_in(), output.len());
        let status = encoder.compress_vec(input, output, flush);
        let status = status.map_err(io::Error::other)?;
        let read = usize::try_from(encoder.total_in() - read_before).unwrap_or(usize::MAX);
        input = input.get(read..).unwrap_or_default();
        let is_done = match flush {
            FlushCompress::Finish => status == Status::StreamEnd,
            // With room left it has nothing more to give.
            _ => input.is_empty() && output.len() < output.capacity(),
        };
        if is_done {
            return Ok(());
        }
        if read == 0 && output.len() == written_before {
            return Err(io::Error::other("the gzip encoder makes no progress"));
        }
    }
}

fn encode_zstd(
    context: &mut CCtx<'static>,
    input: &[u8],
    flush: Flush,
    output: &mut Vec<u8>,
) -> io::Result<()> {
    let directive = match flush {
        Flush::None => ZSTD_EndDirective::ZSTD_e_continue,
        Flush::Sync => ZSTD_EndDirective::ZSTD_e_flush,
        Flush::Finish => ZSTD_EndDirective::ZSTD_e_end,
    };
    let mut source = InBuffer::around(input);
    loop {
        output.reserve(OUTPUT_STEP_BYTES);
        let at = output.len();
        let mut room = OutBuffer::around_pos(output, at);
        let left = context.compress_stream2(&mut room, &mut source, directive);
        let left = left.map_err(zstd_error)?;
        let is_done = match flush {
            Flush::None => source.pos() == input.len(),
            Flush::Sync | Flush::Finish => left == 0,
        };
        if is_done {
            return Ok(());
        }
    }
}

/// A window that has a small body is enough for it.
fn brotli_window_log(settings: EncoderSettings, body: Option<u64>) -> i32 {
    let least = match settings.level {
        ..=4 => SMALL_BROTLI_WINDOW_LOG,
        // For smaller windows the library then has tables of 33 MiB.
        _ => SMALL_BROTLI_WINDOW_LOG + 1,
    };
    if settings.size == EncoderSize::Small {
        return least;
    }
    let needed = body.map_or(u64::MAX, |size| size.saturating_add(16));
    (least..BROTLI_WINDOW_LOG)
        .find(|log| 1_u64 << log >= needed)
        .unwrap_or(BROTLI_WINDOW_LOG)
}

fn zstd_error(code: usize) -> io::Error {
    io::Error::other(get_error_name(code))
}

fn ended() -> io::Error {
    io::Error::other("the encoder has ended")
}

#[cfg(test)]
mod tests;
