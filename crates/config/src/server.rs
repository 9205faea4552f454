//! The `[server]` table: listeners, loops, admin, logs, the account of the process.
//!
//! Called by `parse`; the clash checks also by `resolve`, because the command line replaces
//! addresses.
//!
//! # Invariants
//! - No two addresses of one server overlap, admin's and the streams' included.

mod redis;

use std::borrow::Cow;
use std::path::Path;

use crate::findings::{Findings, LocatedValue, make_absolute};
use crate::model::{
    Config, ControlSocket, HttpListener, LogTarget, Server, SocketPermissions, TcpFrontend,
};
use crate::parse::report_unusable_dir;
use crate::redacted::Secret;
use crate::section::{Keys as _, Section, TextOrTable};
use crate::values::{ListenAddr, MAX_UNIX_PATH_BYTES};
use crate::{access_log, compression, hide, join};

pub(crate) use redis::REDIS_EXPECTED;

/// The longest name of a user or group that the system's data bases have, and some.
const MAX_ACCOUNT_BYTES: usize = 256;

/// The table as it was read, with the places that later checks need.
pub(crate) struct ServerSection {
    /// What it says.
    pub(crate) config: Server,
    offsets: AddressOffsets,
    /// Where the table starts.
    offset: usize,
}

/// Where the addresses stand that are written; the others are defaults.
#[derive(Default)]
struct AddressOffsets {
    listen: Option<Vec<usize>>,
    admin: Option<usize>,
    probes: Option<usize>,
    control_socket: Option<usize>,
    join: Option<usize>,
}

/// Reads the table, or gives the defaults when there is none. `conditions` are the names of the
/// file's conditions.
pub(crate) fn read(top: &Section<'_>, conditions: &[String]) -> ServerSection {
    let mut server = Server::default();
    let mut offsets = AddressOffsets::default();
    let Some(table) = top.table("server") else {
        return ServerSection {
            config: server,
            offsets,
            offset: top.offset,
        };
    };
    if let Some(listen) = read_listen(&table, &mut server) {
        offsets.listen = Some(listen.iter().map(|it| it.offset).collect());
        server.listen = listen.into_iter().map(|it| it.value).collect();
    }
    server.read_keys(&table);
    check_sources(&table);
    if let Some(admin) = table.parse_text("admin", |text| parse_admin(table.findings, text)) {
        server.admin = admin.value;
        offsets.admin = Some(admin.offset);
    }
    if let Some(probes) = read_listen_addr(&table, "probes") {
        server.probes = Some(probes.value);
        offsets.probes = Some(probes.offset);
    }
    if let Some(control) =
        table.parse_text("control_socket", |text| parse_control(table.findings, text))
    {
        server.control_socket = control.value;
        offsets.control_socket = Some(control.offset);
    }
    if let Some(token) = table.table("admin_token") {
        server.admin_token = token.secret_path().map(|file| file.value);
    }
    server.access_log = access_log::read_of_server(&table, conditions);
    let redis = redis::read(&table);
    server.redis_ca = redis::read_authorities(&table, redis.as_deref());
    server.redis = redis.map(Secret::from);
    if let Some(join) = join::read(&table) {
        server.join = Some(join.value);
        offsets.join = Some(join.offset);
    }
    read_process(&table, &mut server);
    server.compress = compression::read(&table, None);
    if let Some(hide) = hide::read(&table) {
        server.hide = hide;
    }
    ServerSection {
        config: server,
        offsets,
        offset: table.offset,
    }
}

/// The keys that `source_files` has read already: their types alone are left to check.
fn check_sources(table: &Section<'_>) {
    table.list("include", |text| (!text.is_empty()).then_some(()));
    match table.is_table("env_file") {
        false => drop(table.path("env_file")),
        true => {
            if let Some(file) = table.table("env_file") {
                file.path("path");
                file.get::<bool>("override");
                file.get::<bool>("optional");
            }
        }
    }
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
pub(crate) fn is_valid_mask_name(text: &str) -> bool {
    let name = text.strip_prefix('*').unwrap_or(text);
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    name.len() <= 64
        && name.bytes().any(|byte| byte.is_ascii_alphanumeric())
        && name.bytes().all(is_part)
}

/// What an item of `log_mask` may be.
pub(crate) const LOG_MASK_EXPECTED: &str =
    "\"default\", a parameter such as \"voucher\", or the end of one such as \"*_pin\"";

/// Whether a text can be the name or the number of a user or a group.
fn is_account_name(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '/' | ',');
    !text.is_empty() && text.len() <= MAX_ACCOUNT_BYTES && !text.contains(is_odd)
}

/// Octal digits, as `umask` of a shell takes them.
pub(crate) fn parse_octal_mode(text: &str) -> Option<u32> {
    let is_octal =
        (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mask = u32::from_str_radix(text, 8).ok()?;
    (is_octal && mask <= 0o777).then_some(mask)
}

impl ServerSection {
    /// Leaves out the default listener, which nothing would answer at.
    pub(crate) fn remove_default_listener(&mut self) {
        if self.offsets.listen.is_none() {
            self.config.listen.clear();
        }
    }

    /// Reports addresses that overlap, each where it is written, else where the other is.
    pub(crate) fn check_addresses(&self, top: &Section<'_>, streams: &[LocatedValue<TcpFrontend>]) {
        let streams = streams.iter().map(|it| (&it.value.listen, Some(it.offset)));
        let addresses = bound_addresses(&self.config, streams, &self.offsets);
        for (later, earlier) in find_conflicts(&addresses) {
            let at = later.offset.or(earlier.offset).unwrap_or(self.offset);
            let place = earlier.offset.map(|it| top.findings.place_suffix(it, at));
            top.report(
                at,
                later.describe_conflict(earlier, &place.unwrap_or_default()),
            );
        }
    }
}

/// An address that the server listens on.
struct BoundAddress<'a> {
    addr: Cow<'a, ListenAddr>,
    role: AddressRole,
    /// Where it is written; `None` for a default, and outside of a file.
    offset: Option<usize>,
}

#[derive(Clone, Copy)]
enum AddressRole {
    Listener,
    Admin,
    Internal,
}

impl BoundAddress<'_> {
    fn describe_conflict(&self, earlier: &Self, place: &str) -> String {
        let (admin, listener) = match (self.role, earlier.role) {
            (AddressRole::Admin, AddressRole::Listener) => (&self.addr, &earlier.addr),
            (AddressRole::Listener, AddressRole::Admin) => (&earlier.addr, &self.addr),
            _ => {
                let (addr, other) = (&self.addr, &earlier.addr);
                return format!("{addr} is already taken by {other}{place}");
            }
        };
        format!(
            "admin ({admin}) and the listener {listener} are the same address: move one, or set \
             admin = \"off\""
        )
    }
}

/// Every address of a server. Of two that overlap the later one is refused.
fn bound_addresses<'a>(
    server: &'a Server,
    streams: impl Iterator<Item = (&'a ListenAddr, Option<usize>)>,
    offsets: &AddressOffsets,
) -> Vec<BoundAddress<'a>> {
    let bound = |addr, role, offset| BoundAddress { addr, role, offset };
    let listener = |addr, offset| bound(Cow::Borrowed(addr), AddressRole::Listener, offset);
    let mut all = Vec::new();
    for (index, it) in server.listen.iter().enumerate() {
        let offset = offsets.listen.as_ref().and_then(|all| all.get(index));
        all.push(listener(&it.address, offset.copied()));
    }
    if let Some(addr) = &server.admin {
        all.push(bound(
            Cow::Borrowed(addr),
            AddressRole::Admin,
            offsets.admin,
        ));
    }
    all.extend(streams.map(|(addr, offset)| listener(addr, offset)));
    if let Some(join) = &server.join {
        all.push(listener(&join.listen, offsets.join));
    }
    let control = match &server.control_socket {
        ControlSocket::Path(path) => Some(Cow::Owned(ListenAddr::Unix(path.clone()))),
        ControlSocket::Auto | ControlSocket::Off => None,
    };
    let probes = server.probes.as_ref().map(Cow::Borrowed);
    for (addr, offset) in [(probes, offsets.probes), (control, offsets.control_socket)] {
        all.extend(addr.map(|addr| bound(addr, AddressRole::Internal, offset)));
    }
    all
}

/// Each address that overlaps an earlier one, and the first such.
fn find_conflicts<'b, 'a>(
    all: &'b [BoundAddress<'a>],
) -> impl Iterator<Item = (&'b BoundAddress<'a>, &'b BoundAddress<'a>)> {
    all.iter().enumerate().filter_map(|(index, later)| {
        let mut earlier = all[..index].iter();
        let first = earlier.find(|earlier| earlier.addr.overlaps(&later.addr))?;
        Some((later, first))
    })
}

/// The first clash among the addresses of a configuration.
pub(crate) fn find_address_conflict(config: &Config) -> Option<String> {
    let streams = config.tcp.iter().map(|stream| (&stream.listen, None));
    let addresses = bound_addresses(&config.server, streams, &AddressOffsets::default());
    let (later, earlier) = find_conflicts(&addresses).next()?;
    Some(later.describe_conflict(earlier, ""))
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
    resolve_socket_path(text.parse().ok()?, found.base_dir())
}

/// A listener's address, placed where it stands.
pub(crate) fn read_listen_addr(table: &Section<'_>, key: &str) -> Option<LocatedValue<ListenAddr>> {
    table.parse_text(key, |text| parse_listen_addr(table.findings, text))
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
pub(crate) fn check_socket_path(text: &str, base: &Path) -> Option<String> {
    let path = text.strip_prefix("unix:")?;
    if path.starts_with('@') {
        return Some(format!(
            "`unix:{path}` would be an abstract socket, which has no permissions: choose the path \
             of a file, such as \"unix:/run/site.sock\""
        ));
    }
    let path = make_absolute(base, Path::new(path));
    let bytes = path.as_os_str().len();
    (bytes > MAX_UNIX_PATH_BYTES).then(|| {
        format!(
            "{}: {bytes} bytes, and the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES}: \
             choose a shorter one",
            path.display()
        )
    })
}

/// An address; why there is none is reported at `key`.
fn read_address(
    table: &Section<'_>,
    key: &str,
    text: &LocatedValue<&str>,
) -> Option<LocatedValue<ListenAddr>> {
    if let Some(problem) = check_socket_path(text.value, table.findings.base_dir()) {
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
    let mode = table
        .parse_text("mode", parse_octal_mode)
        .map(|mode| mode.value);
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
                let problem = format!(
                    "`{key}` sets who may open the file of a Unix socket, and this address is a TCP \
                     port: remove `{key}`"
                );
                table.report_key(key, problem);
            }
        }
        return None;
    }
    Some(SocketPermissions { mode, user, group })
}

/// The addresses with their settings; permissions of Unix sockets go into `server`.
fn read_listen(
    table: &Section<'_>,
    server: &mut Server,
) -> Option<Vec<LocatedValue<HttpListener>>> {
    let items = table.texts_or_tables("listen")?;
    let mut listen = Vec::with_capacity(items.len());
    for item in items {
        match item {
            TextOrTable::Text(text) => {
                let addr = read_address(table, "listen", &text);
                listen.extend(addr.map(|it| LocatedValue::new(it.value.into(), it.offset)));
            }
            TextOrTable::Table(inner) => {
                let text = inner.text("address");
                let addr = text.and_then(|text| read_address(&inner, "address", &text));
                let (mut proxy_protocol, mut has_tls) = (false, false);
                inner.read("proxy_protocol", &mut proxy_protocol);
                inner.read("tls", &mut has_tls);
                let file = read_socket_file(&inner, addr.as_ref().map(|addr| &addr.value));
                let Some(addr) = addr else { continue };
                if let (ListenAddr::Unix(path), Some(file)) = (&addr.value, file) {
                    server.socket_permissions.insert(path.clone(), file);
                }
                let listener = HttpListener {
                    address: addr.value,
                    proxy_protocol,
                    has_tls,
                };
                listen.push(LocatedValue::new(listener, addr.offset));
            }
        }
    }
    restrict_ports_to_ipv4(listen.iter_mut().map(|it| &mut it.value.address).collect());
    table.check_not_empty("listen");
    Some(listen)
}

/// A port alone means IPv4 alone where an IPv6 address has that port beside it: `[":80",
/// "[::]:80"]`.
pub(crate) fn restrict_ports_to_ipv4(mut listen: Vec<&mut ListenAddr>) {
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

pub(crate) fn parse_log_target(found: &Findings<'_>, text: &str) -> Option<LogTarget> {
    match text {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        _ if text.is_empty() || text.contains('\0') => None,
        path => Some(LogTarget::File(found.resolve_path(path))),
    }
}

#[cfg(test)]
mod tests;
