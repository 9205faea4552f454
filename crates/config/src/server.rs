//! The `[server]` table: listeners, loops, admin, logs, the account of the process.
//!
//! Called by `parse`; the clash checks also by `resolve`, because the command line replaces
//! addresses.
//!
//! # Invariants
//! - No two addresses of one server overlap, admin's and the streams' included.

mod redis;

use std::path::Path;

use crate::error::Problem;
use crate::findings::{Findings, LocatedValue, make_absolute};
use crate::model::{
    AccessLog, AccessLogFormat, Config, ControlSocket, JoinEndpoint, LogFormat, LogTarget, Server,
    SocketPermissions,
};
use crate::parse::report_unusable_dir;
use crate::redacted::Secret;
use crate::section::{Keys as _, Section, TextOrTable};
use crate::values::{ListenAddr, MAX_UNIX_PATH_BYTES};
use crate::{hide, join};

pub(crate) use redis::REDIS_EXPECTED;

/// The longest name of a user or group that the system's data bases have, and some.
const MAX_ACCOUNT_BYTES: usize = 256;

/// The table as it was read, with the places that later checks need.
pub(crate) struct ServerSection {
    /// What it says.
    pub(crate) config: Server,
    /// Its own addresses, unless they are the default's.
    listen_written: Option<Vec<LocatedValue<ListenAddr>>>,
    /// Where `admin` stands.
    admin_offset: Option<usize>,
    /// Where `probes` stands.
    probes_offset: Option<usize>,
    /// The offset of `control_socket`.
    control_offset: Option<usize>,
    /// Its `join`, placed at its address.
    pub(crate) join: Option<LocatedValue<JoinEndpoint>>,
    /// Where the table starts.
    offset: usize,
}

/// Reads the table, or gives the defaults when there is none.
pub(crate) fn read(top: &Section<'_>) -> ServerSection {
    let mut read = ServerSection {
        config: Server::default(),
        listen_written: None,
        admin_offset: None,
        probes_offset: None,
        control_offset: None,
        join: None,
        offset: top.offset,
    };
    let Some(table) = top.table("server") else {
        return read;
    };
    read.offset = table.offset;
    let server = &mut read.config;
    read.listen_written = read_listen(&table, server);
    if let Some(listen) = &read.listen_written {
        server.listen = listen.iter().map(|addr| addr.value.clone()).collect();
    }
    server.read_keys(&table);
    if let Some(admin) = table.parse_text("admin", |text| parse_admin(table.findings, text)) {
        server.admin = admin.value;
        read.admin_offset = Some(admin.offset);
    }
    if let Some(probes) = table.parse_text("probes", |text| parse_listen_addr(table.findings, text))
    {
        server.probes = Some(probes.value);
        read.probes_offset = Some(probes.offset);
    }
    if let Some(control) =
        table.parse_text("control_socket", |text| parse_control(table.findings, text))
    {
        server.control_socket = control.value;
        read.control_offset = Some(control.offset);
    }
    if let Some(token) = table.table("admin_token") {
        server.admin_token = token.path("file").map(|file| file.value);
    }
    server.access_log = read_access_log(&table);
    server.redis = redis::read(&table).map(Secret::from);
    read.join = join::read(&table);
    server.join = read.join.as_ref().map(|join| join.value.clone());
    read_process(&table, server);
    if let Some(hide) = hide::read(&table) {
        server.hide = hide;
    }
    read
}

/// The account and the working directory of the server.
fn read_process(table: &Section<'_>, server: &mut Server) {
    (server.user, server.group) = read_account(table);
    if let Some(directory) = table.path("dir") {
        report_unusable_dir(table, "dir", &directory);
        server.dir = Some(directory.value);
    }
}

/// The keys `user`, which may name the group too, and `group`.
pub(crate) fn read_account(table: &Section<'_>) -> (Option<String>, Option<String>) {
    let named = table.parse_text("user", |text| {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_good = is_account_name(user) && group.is_none_or(is_account_name);
        is_good.then(|| (user.to_owned(), group.map(str::to_owned)))
    });
    let (user, group) = named.map(|named| named.value).unzip();
    let named = table.parse_text("group", |text| {
        is_account_name(text).then(|| text.to_owned())
    });
    (
        user,
        named.map(|group| group.value).or_else(|| group.flatten()),
    )
}

/// Whether a text can be the name of a parameter, or the end of one behind a star.
pub(crate) fn is_masked_name(text: &str) -> bool {
    let name = text.strip_prefix('*').unwrap_or(text);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 64
        && name.bytes().any(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_part)
}

/// What an item of `log_mask` may be.
pub(crate) const MASK_EXPECTED: &str =
    "\"default\", a parameter such as \"voucher\", or the end of one such as \"*_pin\"";

/// Whether a text can be the name or the number of a user or a group.
fn is_account_name(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '/' | ',');
    !text.is_empty() && text.len() <= MAX_ACCOUNT_BYTES && !text.contains(is_odd)
}

/// Octal digits, as `umask` of a shell takes them.
pub(crate) fn parse_mode(text: &str) -> Option<u32> {
    let is_octal =
        (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mask = u32::from_str_radix(text, 8).ok()?;
    (is_octal && mask <= 0o777).then_some(mask)
}

impl ServerSection {
    /// Leaves out the default listener, which nothing would answer at.
    pub(crate) fn remove_default_listener(&mut self) {
        if self.listen_written.is_none() {
            self.config.listen.clear();
        }
    }

    /// The listener that an address clashes with, and its line, 0 when it is not in the file.
    pub(crate) fn conflicting_listener(
        &self,
        top: &Section<'_>,
        addr: &ListenAddr,
    ) -> Option<(ListenAddr, usize)> {
        let listen = &self.config.listen;
        let index = listen.iter().position(|other| other.overlaps(addr))?;
        let line = self
            .listener_offset(index)
            .map_or(0, |at| top.findings.line(at));
        Some((listen[index].clone(), line))
    }

    /// Reports a clash of the admin address where the reader wrote something: at its key, else at
    /// the listener.
    pub(crate) fn check_admin(&self, top: &Section<'_>) {
        let Some(admin) = &self.config.admin else {
            return;
        };
        let listen = &self.config.listen;
        let Some(index) = listen.iter().position(|addr| addr.overlaps(admin)) else {
            return;
        };
        let at = self
            .admin_offset
            .or_else(|| self.listener_offset(index))
            .unwrap_or(self.offset);
        let (admin, listener) = (admin.clone(), listen[index].clone());
        top.report(at, Problem::AdminAddressTaken { admin, listener });
    }

    /// Reports an address of probes that a listener or the admin interface has.
    pub(crate) fn check_probes(&self, top: &Section<'_>) {
        let (Some(probes), Some(at)) = (&self.config.probes, self.probes_offset) else {
            return;
        };
        if let Some((other, line)) = self.conflicting_listener(top, probes) {
            top.report(at, address_taken(probes, &other, line));
        }
        let admin = self.config.admin.as_ref();
        if let Some(admin) = admin.filter(|admin| admin.overlaps(probes)) {
            let line = self.admin_offset.map_or(0, |at| top.findings.line(at));
            top.report(at, address_taken(probes, admin, line));
        }
    }

    /// Reports a control socket that is also a listener's, the admin interface's or that of probes.
    pub(crate) fn check_control(&self, top: &Section<'_>) {
        let (ControlSocket::Path(path), Some(at)) =
            (&self.config.control_socket, self.control_offset)
        else {
            return;
        };
        let control = ListenAddr::Unix(path.clone());
        let others = [
            (&self.config.admin, self.admin_offset),
            (&self.config.probes, self.probes_offset),
        ];
        let mut others = others.iter().filter_map(|(other, at)| {
            let other = other.as_ref().filter(|other| other.overlaps(&control))?;
            Some((other.clone(), at.map_or(0, |at| top.findings.line(at))))
        });
        let listener = self.conflicting_listener(top, &control);
        if let Some((other, line)) = listener.or_else(|| others.next()) {
            top.report(at, address_taken(&control, &other, line));
        }
    }

    fn listener_offset(&self, index: usize) -> Option<usize> {
        let listen = self.listen_written.as_ref()?;
        listen.get(index).map(|addr| addr.offset)
    }
}

/// The first clash among the addresses of a configuration.
pub(crate) fn find_address_conflict(config: &Config) -> Option<Problem> {
    let streams = config.tcp.iter().map(|stream| &stream.listen);
    let join = config.server.join.iter().map(|join| &join.listen);
    let listen = config.server.listen.iter().chain(streams).chain(join);
    let listen: Vec<_> = listen.collect();
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index].iter().find(|other| other.overlaps(addr)) {
            return Some(address_taken(addr, other, 0));
        }
    }
    let admin = config.server.admin.as_ref()?;
    let listener = listen.iter().find(|listener| listener.overlaps(admin))?;
    Some(Problem::AdminAddressTaken {
        admin: admin.clone(),
        listener: (*listener).clone(),
    })
}

/// A Unix socket's path seen from `base`; none when that is too long for the system.
pub(crate) fn resolve_socket_path(addr: ListenAddr, base: &Path) -> Option<ListenAddr> {
    let ListenAddr::Unix(path) = addr else {
        return Some(addr);
    };
    let path = make_absolute(base, &path);
    (path.as_os_str().len() <= MAX_UNIX_PATH_BYTES).then_some(ListenAddr::Unix(path))
}

/// A listener's address in a file.
pub(crate) fn parse_listen_addr(found: &Findings<'_>, text: &str) -> Option<ListenAddr> {
    resolve_socket_path(text.parse().ok()?, found.base())
}

fn parse_admin(found: &Findings<'_>, text: &str) -> Option<Option<ListenAddr>> {
    if text == "off" {
        Some(None)
    } else {
        parse_listen_addr(found, text).map(Some)
    }
}

fn parse_control(found: &Findings<'_>, text: &str) -> Option<ControlSocket> {
    if text == "off" {
        return Some(ControlSocket::Off);
    }
    match parse_listen_addr(found, text)? {
        ListenAddr::Unix(path) => Some(ControlSocket::Path(path)),
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => None,
    }
}

/// Why a text cannot be the path of a Unix socket, where it is meant to be one.
pub(crate) fn check_socket_path(text: &str, base: &Path) -> Option<Problem> {
    let path = text.strip_prefix("unix:")?;
    if path.starts_with('@') {
        return Some(Problem::AbstractSocket(path.to_owned()));
    }
    let path = make_absolute(base, Path::new(path));
    let bytes = path.as_os_str().len();
    (bytes > MAX_UNIX_PATH_BYTES).then_some(Problem::SocketPathTooLong { path, bytes })
}

/// An address; why there is none is reported at `key`.
fn read_address(
    table: &Section<'_>,
    key: &str,
    text: &LocatedValue<&str>,
) -> Option<LocatedValue<ListenAddr>> {
    if let Some(problem) = check_socket_path(text.value, table.findings.base()) {
        table.report(text.offset, problem);
        return None;
    }
    match parse_listen_addr(table.findings, text.value) {
        Some(addr) => Some(LocatedValue::new(addr, text.offset)),
        None => {
            table.report_invalid(key, text);
            None
        }
    }
}

/// The permissions of a Unix socket, from its table.
fn read_socket_file(table: &Section<'_>, addr: Option<&ListenAddr>) -> Option<SocketPermissions> {
    let mode = table.parse_text("mode", parse_mode).map(|mode| mode.value);
    let owner = table.parse_text("owner", |text| {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (user, group) = (part(user), part(group));
        let is_good = user.iter().chain(&group).all(|name| is_account_name(name));
        (is_good && (user.is_some() || group.is_some())).then_some((user, group))
    });
    let (user, group) = owner.map(|owner| owner.value).unwrap_or_default();
    if let Some(ListenAddr::Tcp(_) | ListenAddr::Port(_)) = addr {
        for key in ["mode", "owner"] {
            if table.has(key) {
                table.report(table.key_offset(&[key]), Problem::NotAUnixSocket(key));
            }
        }
        return None;
    }
    Some(SocketPermissions { mode, user, group })
}

/// The addresses and their settings, into `server`.
fn read_listen(table: &Section<'_>, server: &mut Server) -> Option<Vec<LocatedValue<ListenAddr>>> {
    let items = table.texts_or_tables("listen")?;
    let mut listen = Vec::with_capacity(items.len());
    for item in items {
        match item {
            TextOrTable::Text(text) => listen.extend(read_address(table, "listen", &text)),
            TextOrTable::Table(inner) => {
                let text = inner.text("address");
                let addr = text.and_then(|text| read_address(&inner, "address", &text));
                let mut is_behind = false;
                inner.read("proxy_protocol", &mut is_behind);
                let file = read_socket_file(&inner, addr.as_ref().map(|addr| &addr.value));
                let Some(addr) = addr else { continue };
                if is_behind {
                    server.proxy_protocol.push(addr.value.clone());
                }
                if let (ListenAddr::Unix(path), Some(file)) = (&addr.value, file) {
                    server.socket_permissions.insert(path.clone(), file);
                }
                listen.push(addr);
            }
        }
    }
    split_families(listen.iter_mut().map(|addr| &mut addr.value).collect());
    check_listen(table, &listen);
    Some(listen)
}

/// A port alone means IPv4 alone where an IPv6 address has that port beside it: `[":80",
/// "[::]:80"]`.
pub(crate) fn split_families(mut listen: Vec<&mut ListenAddr>) {
    let is_ipv6 = |addr: &ListenAddr, port: u16| match addr {
        ListenAddr::Tcp(tcp) => tcp.is_ipv6() && tcp.port() == port && port != 0,
        ListenAddr::Port(_) | ListenAddr::Unix(_) => false,
    };
    for index in 0..listen.len() {
        if let ListenAddr::Port(port) = *listen[index]
            && listen.iter().any(|other| is_ipv6(other, port))
        {
            *listen[index] = ListenAddr::Tcp((std::net::Ipv4Addr::UNSPECIFIED, port).into());
        }
    }
}

fn check_listen(table: &Section<'_>, listen: &[LocatedValue<ListenAddr>]) {
    table.check_not_empty("listen");
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index]
            .iter()
            .find(|o| o.value.overlaps(&addr.value))
        {
            let line = table.findings.line(other.offset);
            table.report(addr.offset, address_taken(&addr.value, &other.value, line));
        }
    }
}

/// Why an address cannot be listened at.
pub(crate) fn address_taken(addr: &ListenAddr, other: &ListenAddr, line: usize) -> Problem {
    Problem::AddressTaken {
        addr: addr.clone(),
        other: other.clone(),
        line,
    }
}

fn read_access_log(table: &Section<'_>) -> Option<AccessLog> {
    if !table.has("access_log") {
        return None;
    }
    if !table.is_table("access_log") {
        let target = table.parse_text("access_log", |text| match text {
            "off" => Some(None),
            _ => parse_log_target(table.findings, text).map(Some),
        })?;
        return target.value.map(|path| AccessLog {
            path,
            format: LogFormat::default(),
        });
    }
    let log = table.table("access_log")?;
    let format = log.get("format").unwrap_or(AccessLogFormat::Combined);
    let path = log.parse_text("path", |text| parse_log_target(log.findings, text));
    let format = match format {
        AccessLogFormat::Off => return None,
        AccessLogFormat::Json => LogFormat::Json,
        AccessLogFormat::Dev => LogFormat::Dev,
        AccessLogFormat::Combined => LogFormat::Combined,
    };
    if !log.has("path") {
        log.report_missing("path");
    }
    path.map(|path| AccessLog {
        path: path.value,
        format,
    })
}

pub(crate) fn parse_log_target(found: &Findings<'_>, text: &str) -> Option<LogTarget> {
    match text {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        _ if text.is_empty() || text.contains('\0') => None,
        path => Some(LogTarget::File(found.resolve(path))),
    }
}

#[cfg(test)]
mod tests;
