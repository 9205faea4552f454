//! Instructions in the `Grip-*` fields of a response.

use std::str;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use penstock_exchange::grip::is_grip_field;
use penstock_http::{FieldBlock, Status};
use penstock_hub::{StreamKeepAlive, Subscription};

use super::{
    GripInstructions, GripLinks, HoldInstruction, HoldMode, InstructionError, MAX_TIMEOUT,
    NEXT_LINK_TIMEOUT, NextLink, build_keep_alive, has_instruction_body, parse_filter,
};
use crate::field_lists::{ListElement, parse_elements, parse_pair, unquote};

const HOLD: &str = "Grip-Hold";
const CHANNEL: &str = "Grip-Channel";
const TIMEOUT: &str = "Grip-Timeout";
const KEEP_ALIVE: &str = "Grip-Keep-Alive";
const STATUS: &str = "Grip-Status";
const EXPOSE_HEADERS: &str = "Grip-Expose-Headers";
const SET_META: &str = "Grip-Set-Meta";
const LINK: &str = "Grip-Link";

impl GripInstructions {
    /// Reads the instructions in the status and fields of a response.
    pub(crate) fn from_fields(
        status: Status,
        block: &FieldBlock,
    ) -> Result<Self, InstructionError> {
        Ok(Self {
            hold: parse_hold(block)?,
            status: parse_status(block)?.unwrap_or(status),
            fields: exposed_fields(block)?,
            body: None,
            links: parse_links(block)?,
        })
    }
}

fn parse_hold(block: &FieldBlock) -> Result<Option<HoldInstruction>, InstructionError> {
    let Some(mode) = block.get(HOLD) else {
        return Ok(None);
    };
    let mut hold = HoldInstruction::new(match mode {
        b"response" => HoldMode::LongPoll,
        b"stream" => HoldMode::Stream,
        _ => {
            return Err(InstructionError::InvalidField(
                HOLD,
                "`response` or `stream`",
            ));
        }
    });
    for element in list_elements(block, CHANNEL)? {
        hold.subscriptions.push(parse_subscription(&element)?);
    }
    // They may stand in a body.
    if hold.subscriptions.is_empty() && !has_instruction_body(block) {
        return Err(InstructionError::NoChannel);
    }
    if let Some(seconds) = block.get(TIMEOUT) {
        hold.set_timeout(parse_seconds(seconds, TIMEOUT)?);
    }
    hold.keep_alive = block
        .get(KEEP_ALIVE)
        .map(parse_keep_alive)
        .transpose()?
        .flatten();
    for element in list_elements(block, SET_META)? {
        let (name, value) = parse_pair(&element.value)
            .ok_or(InstructionError::InvalidField(SET_META, "`name=value`"))?;
        hold.subscriber_meta
            .push((name.into(), value.as_ref().into()));
    }
    Ok(Some(hold))
}

fn parse_subscription(element: &ListElement<'_>) -> Result<Subscription, InstructionError> {
    let name = &*element.value;
    if name.is_empty() {
        return Err(InstructionError::InvalidField(CHANNEL, "a channel's name"));
    }
    let filters = element
        .parameters_named("filter")
        .map(|filter| parse_filter(name, filter));
    Ok(Subscription {
        channel: name.into(),
        prev_id: element.parameter("prev-id").map(Into::into),
        filters: filters.collect::<Result<_, _>>()?,
    })
}

/// `data; format=raw|cstring|base64; timeout=N; mode=idle|interval`. The data may hold commas,
/// quotes and semicolons, so the parameters are looked for from the end.
fn parse_keep_alive(value: &[u8]) -> Result<Option<StreamKeepAlive>, InstructionError> {
    let bad = |expected| InstructionError::InvalidField(KEEP_ALIVE, expected);
    let mut data = str::from_utf8(value).map_err(|_| bad("a text"))?;
    let (mut format, mut seconds, mut regardless) = ("raw", None, false);
    while let Some((before, last)) = data.rsplit_once(';') {
        let Some((name, value)) = last.split_once('=') else {
            break;
        };
        let value = value.trim();
        match name.trim() {
            "format" => format = value,
            "timeout" => seconds = Some(parse_seconds(value.as_bytes(), KEEP_ALIVE)?),
            "mode" if value == "idle" => regardless = false,
            "mode" if value == "interval" => regardless = true,
            "mode" => return Err(bad("mode `idle` or `interval`")),
            _ => break,
        }
        data = before;
    }
    let data = data.trim();
    if data.is_empty() {
        return Err(bad("something to send"));
    }
    let bytes: Bytes = match format {
        "raw" => Bytes::copy_from_slice(unquote(data).as_bytes()),
        "cstring" => unescape_cstring(data)
            .ok_or_else(|| bad("`\\\\`, `\\r`, `\\n` or `\\xHH`"))?
            .into(),
        "base64" => STANDARD.decode(data).map_err(|_| bad("base64"))?.into(),
        _ => return Err(bad("format `raw`, `cstring` or `base64`")),
    };
    Ok(build_keep_alive(bytes, seconds, regardless))
}

/// The bytes of a `cstring`. A `\` in front of anything else leaves both out, as other readers of
/// GRIP do.
fn unescape_cstring(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next()? {
            b'\\' => out.push(b'\\'),
            b'r' => out.push(b'\r'),
            b'n' => out.push(b'\n'),
            b'x' => {
                let mut digit = || char::from(bytes.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                out.push(u8::try_from(high * 16 + low).ok()?);
            }
            _ => {}
        }
    }
    Some(out)
}

/// `code [reason]`. Penstock sends its own reason, as in all responses.
fn parse_status(block: &FieldBlock) -> Result<Option<Status>, InstructionError> {
    let Some(value) = block.get(STATUS) else {
        return Ok(None);
    };
    let digits = value.split(|&byte| byte == b' ').next().unwrap_or_default();
    let code = parse_seconds(digits, STATUS)?;
    let status = u16::try_from(code).ok().and_then(Status::new);
    status
        .filter(|status| !status.is_informational())
        .map(Some)
        .ok_or(InstructionError::InvalidField(
            STATUS,
            "a code from 200 to 599",
        ))
}

/// The fields for the client: all but GRIP's, or only the exposed ones.
fn exposed_fields(block: &FieldBlock) -> Result<FieldBlock, InstructionError> {
    let names = list_elements(block, EXPOSE_HEADERS)?;
    let is_named = |name: &str| {
        let mut names = names.iter();
        names.any(|known| known.value.eq_ignore_ascii_case(name))
    };
    let mut fields = FieldBlock::with_capacity(block.as_bytes().len());
    for (name, value) in block.iter() {
        if !is_grip_field(name.as_bytes()) && (names.is_empty() || is_named(name)) {
            let pushed = fields.push(name, value);
            debug_assert!(pushed.is_ok(), "it was a field before");
        }
    }
    Ok(fields)
}

fn parse_links(block: &FieldBlock) -> Result<GripLinks, InstructionError> {
    let mut links = GripLinks::default();
    for element in list_elements(block, LINK)? {
        let target = element
            .value
            .strip_prefix('<')
            .and_then(|rest| rest.strip_suffix('>'))
            .filter(|target| !target.is_empty());
        let Some(target) = target else {
            return Err(InstructionError::InvalidField(
                LINK,
                "`<URI>; rel=next` or `rel=gone`",
            ));
        };
        match element.parameter("rel") {
            Some("next") => {
                let seconds = element.parameter("timeout");
                let seconds = seconds.map(|digits| parse_seconds(digits.as_bytes(), LINK));
                let timeout = seconds
                    .transpose()?
                    .map_or(NEXT_LINK_TIMEOUT, Duration::from_secs);
                links.next = Some(NextLink {
                    target: target.into(),
                    timeout: timeout.min(MAX_TIMEOUT),
                });
            }
            Some("gone") => links.gone = Some(target.into()),
            // There may be others one day.
            _ => {}
        }
    }
    Ok(links)
}

fn list_elements<'b>(
    block: &'b FieldBlock,
    name: &'static str,
) -> Result<Vec<ListElement<'b>>, InstructionError> {
    let mut all = Vec::new();
    for (known, value) in block.iter() {
        if known.eq_ignore_ascii_case(name) {
            all.extend(
                parse_elements(value).ok_or(InstructionError::InvalidField(name, "a text"))?,
            );
        }
    }
    Ok(all)
}

fn parse_seconds(digits: &[u8], name: &'static str) -> Result<u64, InstructionError> {
    let number = penstock_http::parse_content_length(digits);
    number.ok_or(InstructionError::InvalidField(
        name,
        "a whole number of seconds, 0 or more",
    ))
}
