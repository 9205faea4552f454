//! Brings a host into the one form that the maps of the store have as keys.

/// The longest DNS name in text form (RFC 1035 §2.3.4).
const MAX_NAME: usize = 253;

/// Calls `use_name` with the host in lower case, without a final dot and without the brackets of an
/// IPv6 address. `None` for texts that are longer than any name.
pub(super) fn normalize<R>(host: &str, use_name: impl FnOnce(&str) -> R) -> Option<R> {
    let host = host.strip_suffix('.').unwrap_or(host);
    let inside = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    let host = inside.unwrap_or(host);
    if !host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return (host.len() <= MAX_NAME).then(|| use_name(host));
    }
    let mut lower = [0; MAX_NAME];
    let lower = lower.get_mut(..host.len())?;
    lower.copy_from_slice(host.as_bytes());
    lower.make_ascii_lowercase();
    std::str::from_utf8(lower).ok().map(use_name)
}
