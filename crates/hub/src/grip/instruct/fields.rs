//! Instructions in the `Grip-*` fields of an answer.

use std::str;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use penstock_exchange::grip::is_grip_field;
use penstock_http::{FieldBlock, Status};

use super::{
    HoldPart, Instruct, InstructError, Links, Mode, NEXT_TIMEOUT, NextLink, TIMEOUT_MAX, filter,
    is_spoken_in_body, keep_alive,
};
use crate::grip::parameters::{Element, elements, pair, unquoted};
use crate::{KeepAlive, Subscription};

const HOLD: &str = "Grip-Hold";
const CHANNEL: &str = "Grip-Channel";
const TIMEOUT: &str = "Grip-Timeout";
const KEEP_ALIVE: &str = "Grip-Keep-Alive";
const STATUS: &str = "Grip-Status";
const EXPOSE: &str = "Grip-Expose-Headers";
const META: &str = "Grip-Set-Meta";
const LINK: &str = "Grip-Link";

pub(super) fn read(status: Status, block: &FieldBlock) -> Result<Instruct, InstructError> {
    Ok(Instruct {
        hold: hold(block)?,
        status: final_status(block)?.unwrap_or(status),
        fields: exposed(block)?,
        body: None,
        links: links(block)?,
    })
}

fn hold(block: &FieldBlock) -> Result<Option<HoldPart>, InstructError> {
    let Some(mode) = block.get(HOLD) else {
        return Ok(None);
    };
    let mut hold = HoldPart::new(match mode {
        b"response" => Mode::Response,
        b"stream" => Mode::Stream,
        _ => return Err(InstructError::Field(HOLD, "`response` or `stream`")),
    });
    for element in list(block, CHANNEL)? {
        hold.subscriptions.push(subscription(&element)?);
    }
    // They may stand in a body.
    if hold.subscriptions.is_empty() && !is_spoken_in_body(block) {
        return Err(InstructError::NoChannel);
    }
    if let Some(seconds) = block.get(TIMEOUT) {
        hold.wait(number(seconds, TIMEOUT)?);
    }
    hold.keep_alive = block.get(KEEP_ALIVE).map(heart_beat).transpose()?.flatten();
    for element in list(block, META)? {
        let (name, value) =
            pair(&element.value).ok_or(InstructError::Field(META, "`name=value`"))?;
        hold.meta.push((name.into(), value.as_ref().into()));
    }
    Ok(Some(hold))
}

fn subscription(element: &Element<'_>) -> Result<Subscription, InstructError> {
    let name = &*element.value;
    if name.is_empty() {
        return Err(InstructError::Field(CHANNEL, "a channel's name"));
    }
    let filters = element.all("filter").map(|asked| filter(name, asked));
    Ok(Subscription {
        channel: name.into(),
        prev_id: element.parameter("prev-id").map(Into::into),
        filters: filters.collect::<Result<_, _>>()?,
    })
}

/// `data; format=raw|cstring|base64; timeout=N; mode=idle|interval`. The data may hold commas, quotes and
/// semicolons, so the parameters are looked for from the end.
fn heart_beat(value: &[u8]) -> Result<Option<KeepAlive>, InstructError> {
    let bad = |expected| InstructError::Field(KEEP_ALIVE, expected);
    let mut data = str::from_utf8(value).map_err(|_| bad("a text"))?;
    let (mut format, mut seconds, mut regardless) = ("raw", None, false);
    while let Some((before, last)) = data.rsplit_once(';') {
        let Some((name, value)) = last.split_once('=') else {
            break;
        };
        let value = value.trim();
        match name.trim() {
            "format" => format = value,
            "timeout" => seconds = Some(number(value.as_bytes(), KEEP_ALIVE)?),
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
        "raw" => Bytes::copy_from_slice(unquoted(data).as_bytes()),
        "cstring" => unescape(data)
            .ok_or_else(|| bad("`\\\\`, `\\r`, `\\n` or `\\xHH`"))?
            .into(),
        "base64" => STANDARD.decode(data).map_err(|_| bad("base64"))?.into(),
        _ => return Err(bad("format `raw`, `cstring` or `base64`")),
    };
    Ok(keep_alive(bytes, seconds, regardless))
}

/// The bytes of a `cstring`. A `\` in front of anything else leaves both out, as other readers of GRIP do.
fn unescape(text: &str) -> Option<Vec<u8>> {
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

/// `code [reason]`. The reason is the house's, as in all answers.
fn final_status(block: &FieldBlock) -> Result<Option<Status>, InstructError> {
    let Some(value) = block.get(STATUS) else {
        return Ok(None);
    };
    let digits = value.split(|&byte| byte == b' ').next().unwrap_or_default();
    let code = number(digits, STATUS)?;
    let status = u16::try_from(code).ok().and_then(Status::new);
    status
        .filter(|status| !status.is_informational())
        .map(Some)
        .ok_or(InstructError::Field(STATUS, "a code from 200 to 599"))
}

/// What clients see: everything but GRIP's, or only what is named.
fn exposed(block: &FieldBlock) -> Result<FieldBlock, InstructError> {
    let names = list(block, EXPOSE)?;
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

fn links(block: &FieldBlock) -> Result<Links, InstructError> {
    let mut links = Links::default();
    for element in list(block, LINK)? {
        let target = element
            .value
            .strip_prefix('<')
            .and_then(|rest| rest.strip_suffix('>'))
            .filter(|target| !target.is_empty());
        let Some(target) = target else {
            return Err(InstructError::Field(
                LINK,
                "`<URI>; rel=next` or `rel=gone`",
            ));
        };
        match element.parameter("rel") {
            Some("next") => {
                let seconds = element.parameter("timeout");
                let seconds = seconds.map(|digits| number(digits.as_bytes(), LINK));
                let timeout = seconds
                    .transpose()?
                    .map_or(NEXT_TIMEOUT, Duration::from_secs);
                links.next = Some(NextLink {
                    target: target.into(),
                    timeout: timeout.min(TIMEOUT_MAX),
                });
            }
            Some("gone") => links.gone = Some(target.into()),
            // There may be others one day.
            _ => {}
        }
    }
    Ok(links)
}

/// The elements of all fields of that name.
fn list<'b>(block: &'b FieldBlock, name: &'static str) -> Result<Vec<Element<'b>>, InstructError> {
    let mut all = Vec::new();
    for (known, value) in block.iter() {
        if known.eq_ignore_ascii_case(name) {
            all.extend(elements(value).ok_or(InstructError::Field(name, "a text"))?);
        }
    }
    Ok(all)
}

fn number(digits: &[u8], name: &'static str) -> Result<u64, InstructError> {
    let number = penstock_http::parse_length(digits);
    number.ok_or(InstructError::Field(
        name,
        "a whole number of seconds, 0 or more",
    ))
}
