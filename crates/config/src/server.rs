//! The `[server]` table: listeners, loops, admin, logs, whom the process runs as.
//!
//! Called by `parse`; the clash checks also by `resolve`, because the command line replaces
//! addresses. What must stay true: no two addresses of one server overlap, admin's and the streams'
//! included.

mod redis;

use std::path::Path;

use crate::address::is_network;
use crate::error::Problem;
use crate::headers::is_token;
use crate::masked::Secret;
use crate::model::{
    AccessLog, Config, Control, Join, LogFormat, LogTarget, Server, ServerLogFormat, SocketFile,
};
use crate::parse::check_folder;
use crate::place::{At, Findings, absolute};
use crate::section::{Item, Section};
use crate::values::{ListenAddr, UNIX_PATH_BYTES};
use crate::{hide, join};

pub(crate) use redis::EXPECTED as REDIS_EXPECTED;

/// The longest name of a user or group that the system's data bases have, and some.
const ACCOUNT_BYTES: usize = 256;

/// The table as it was read, with the places that later checks need.
pub(crate) struct Read {
    /// What it says.
    pub(crate) value: Server,
    /// Its own addresses, unless they are the default's.
    listen: Option<Vec<At<ListenAddr>>>,
    /// Where `admin` stands.
    admin_at: Option<usize>,
    /// Where `probes` stands.
    probes_at: Option<usize>,
    /// Where `control` stands.
    control_at: Option<usize>,
    /// Its `join`, placed at its address.
    pub(crate) join: Option<At<Join>>,
    /// Where the table starts.
    at: usize,
}

/// Reads the table, or gives the defaults when there is none.
pub(crate) fn read(top: &Section<'_>) -> Read {
    let mut read = Read {
        value: Server::default(),
        listen: None,
        admin_at: None,
        probes_at: None,
        control_at: None,
        join: None,
        at: top.at,
    };
    let Some(table) = top.table("server") else {
        return read;
    };
    read.at = table.at;
    let server = &mut read.value;
    read.listen = read_listen(&table, server);
    if let Some(listen) = &read.listen {
        server.listen = listen.iter().map(|addr| addr.value.clone()).collect();
    }
    table.flag("reuse_port", &mut server.reuse_port);
    table.count("threads", &mut server.threads);
    if let Some(admin) = table.parsed("admin", |text| admin(table.found, text)) {
        server.admin = admin.value;
        read.admin_at = Some(admin.at);
    }
    if let Some(probes) = table.parsed("probes", |text| address(table.found, text)) {
        server.probes = Some(probes.value);
        read.probes_at = Some(probes.at);
    }
    if let Some(control) = table.parsed("control", |text| control(table.found, text)) {
        server.control = control.value;
        read.control_at = Some(control.at);
    }
    if let Some(token) = table.table("admin_token") {
        server.admin_token = token.path("file").map(|file| file.value);
        if !token.has("file") {
            token.missing("file");
        }
    }
    server.access_log = read_access_log(&table);
    table.duration("shutdown_timeout", &mut server.shutdown_timeout);
    table.duration("upgrade_timeout", &mut server.upgrade_timeout);
    table.duration("drain_idle", &mut server.drain_idle);
    server.redis = redis::read(&table).map(Secret::from);
    read.join = join::read(&table);
    server.join = read.join.as_ref().map(|join| join.value.clone());
    read_process(&table, server);
    let trusted = table.list("trusted_proxies", |text| {
        is_network(text).then(|| text.to_owned())
    });
    server.trusted_proxies = trusted.map(|all| all.into_iter().map(|one| one.value).collect());
    let client_address = table.parsed("client_address", |text| {
        is_token(text).then(|| text.to_owned())
    });
    server.client_address = client_address.map(|name| name.value);
    let mask = table.list("log_mask", |text| {
        is_masked_name(text).then(|| text.to_owned())
    });
    if let Some(mask) = mask {
        server.log_mask = mask.into_iter().map(|name| name.value).collect();
    }
    if let Some(hide) = hide::read(&table) {
        server.hide = hide;
    }
    read
}

/// What the server's own process is: its log, whom it runs as, its bounds.
fn read_process(table: &Section<'_>, server: &mut Server) {
    if let Some(log) = table.parsed("log", |text| log_target(table.found, text)) {
        server.log = log.value;
    }
    if let Some(format) = table.word("log_format") {
        server.log_format = match format.value {
            "json" => ServerLogFormat::Json,
            _ => ServerLogFormat::Text,
        };
    }
    (server.user, server.group) = read_account(table);
    if let Some(umask) = table.parsed("umask", umask) {
        server.umask = Some(umask.value);
    }
    server.open_files = table.count_said("open_files");
    if let Some(directory) = table.path("directory") {
        check_folder(table, "directory", &directory);
        server.directory = Some(directory.value);
    }
}

/// The keys `user`, which may name the group too, and `group`.
pub(crate) fn read_account(table: &Section<'_>) -> (Option<String>, Option<String>) {
    let named = table.parsed("user", |text| {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let is_good = is_account(user) && group.is_none_or(is_account);
        is_good.then(|| (user.to_owned(), group.map(str::to_owned)))
    });
    let (user, group) = named.map(|named| named.value).unzip();
    let named = table.parsed("group", |text| is_account(text).then(|| text.to_owned()));
    (
        user,
        named.map(|group| group.value).or_else(|| group.flatten()),
    )
}

/// Whether a text can be the name of a parameter, or the end of one behind a star.
fn is_masked_name(text: &str) -> bool {
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
fn is_account(text: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | '/' | ',');
    !text.is_empty() && text.len() <= ACCOUNT_BYTES && !text.contains(is_odd)
}

/// Octal digits, as `umask` of a shell takes them.
fn umask(text: &str) -> Option<u32> {
    let is_octal =
        (3..=4).contains(&text.len()) && text.bytes().all(|b| (b'0'..=b'7').contains(&b));
    let mask = u32::from_str_radix(text, 8).ok()?;
    (is_octal && mask <= 0o777).then_some(mask)
}

impl Read {
    /// Leaves out the default listener, which nothing would answer at.
    pub(crate) fn leave_out_default(&mut self) {
        if self.listen.is_none() {
            self.value.listen.clear();
        }
    }

    /// The listener that an address clashes with, and its line, 0 when it is not in the file.
    pub(crate) fn listener_at(
        &self,
        top: &Section<'_>,
        addr: &ListenAddr,
    ) -> Option<(ListenAddr, usize)> {
        let listen = &self.value.listen;
        let index = listen.iter().position(|other| other.overlaps(addr))?;
        let line = self.place(index).map_or(0, |at| top.found.line(at));
        Some((listen[index].clone(), line))
    }

    /// Reports a clash of the admin address where the reader wrote something: at its key, else at the
    /// listener.
    pub(crate) fn check_admin(&self, top: &Section<'_>) {
        let Some(admin) = &self.value.admin else {
            return;
        };
        let listen = &self.value.listen;
        let Some(index) = listen.iter().position(|addr| addr.overlaps(admin)) else {
            return;
        };
        let at = self
            .admin_at
            .or_else(|| self.place(index))
            .unwrap_or(self.at);
        let (admin, listener) = (admin.clone(), listen[index].clone());
        top.add(at, Problem::AdminTaken { admin, listener });
    }

    /// Reports an address of probes that a listener or the admin interface has.
    pub(crate) fn check_probes(&self, top: &Section<'_>) {
        let (Some(probes), Some(at)) = (&self.value.probes, self.probes_at) else {
            return;
        };
        if let Some((other, line)) = self.listener_at(top, probes) {
            top.add(at, taken(probes, &other, line));
        }
        let admin = self.value.admin.as_ref();
        if let Some(admin) = admin.filter(|admin| admin.overlaps(probes)) {
            let line = self.admin_at.map_or(0, |at| top.found.line(at));
            top.add(at, taken(probes, admin, line));
        }
    }

    /// Reports a control socket that is also a listener's, the admin interface's or that of probes.
    pub(crate) fn check_control(&self, top: &Section<'_>) {
        let (Control::At(path), Some(at)) = (&self.value.control, self.control_at) else {
            return;
        };
        let control = ListenAddr::Unix(path.clone());
        let others = [
            (&self.value.admin, self.admin_at),
            (&self.value.probes, self.probes_at),
        ];
        let mut others = others.iter().filter_map(|(other, at)| {
            let other = other.as_ref().filter(|other| other.overlaps(&control))?;
            Some((other.clone(), at.map_or(0, |at| top.found.line(at))))
        });
        let listener = self.listener_at(top, &control);
        if let Some((other, line)) = listener.or_else(|| others.next()) {
            top.add(at, taken(&control, &other, line));
        }
    }

    fn place(&self, index: usize) -> Option<usize> {
        let listen = self.listen.as_ref()?;
        listen.get(index).map(|addr| addr.at)
    }
}

/// The first clash among the addresses of a configuration.
pub(crate) fn clash(config: &Config) -> Option<Problem> {
    let streams = config.streams.iter().map(|stream| &stream.listen);
    let join = config.server.join.iter().map(|join| &join.listen);
    let listen = config.server.listen.iter().chain(streams).chain(join);
    let listen: Vec<_> = listen.collect();
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index].iter().find(|other| other.overlaps(addr)) {
            return Some(taken(addr, other, 0));
        }
    }
    let admin = config.server.admin.as_ref()?;
    let listener = listen.iter().find(|listener| listener.overlaps(admin))?;
    Some(Problem::AdminTaken {
        admin: admin.clone(),
        listener: (*listener).clone(),
    })
}

/// A Unix socket's path seen from `base`; none when that is too long for the system.
pub(crate) fn based(addr: ListenAddr, base: &Path) -> Option<ListenAddr> {
    let ListenAddr::Unix(path) = addr else {
        return Some(addr);
    };
    let path = absolute(base, &path);
    (path.as_os_str().len() <= UNIX_PATH_BYTES).then_some(ListenAddr::Unix(path))
}

/// A listener's address in a file.
pub(crate) fn address(found: &Findings<'_>, text: &str) -> Option<ListenAddr> {
    based(text.parse().ok()?, found.base())
}

fn admin(found: &Findings<'_>, text: &str) -> Option<Option<ListenAddr>> {
    if text == "off" {
        Some(None)
    } else {
        address(found, text).map(Some)
    }
}

fn control(found: &Findings<'_>, text: &str) -> Option<Control> {
    if text == "off" {
        return Some(Control::Off);
    }
    match address(found, text)? {
        ListenAddr::Unix(path) => Some(Control::At(path)),
        ListenAddr::Tcp(_) | ListenAddr::Port(_) => None,
    }
}

/// Why a text cannot be the path of a Unix socket, where it is meant to be one.
pub(crate) fn unfit_socket(text: &str, base: &Path) -> Option<Problem> {
    let path = text.strip_prefix("unix:")?;
    if path.starts_with('@') {
        return Some(Problem::AbstractSocket(path.to_owned()));
    }
    let path = absolute(base, Path::new(path));
    let bytes = path.as_os_str().len();
    (bytes > UNIX_PATH_BYTES).then_some(Problem::SocketPathTooLong { path, bytes })
}

/// An address; why there is none is reported at `key`.
fn read_address(table: &Section<'_>, key: &str, text: &At<&str>) -> Option<At<ListenAddr>> {
    if let Some(problem) = unfit_socket(text.value, table.found.base()) {
        table.add(text.at, problem);
        return None;
    }
    match address(table.found, text.value) {
        Some(addr) => Some(At::new(addr, text.at)),
        None => {
            table.bad(key, text);
            None
        }
    }
}

/// Who may connect to a Unix socket, as a table says it.
fn read_socket_file(table: &Section<'_>, addr: Option<&ListenAddr>) -> Option<SocketFile> {
    let mode = table.parsed("mode", umask).map(|mode| mode.value);
    let owner = table.parsed("owner", |text| {
        let (user, group) = text.split_once(':').unwrap_or((text, ""));
        let part = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let (user, group) = (part(user), part(group));
        let is_good = user.iter().chain(&group).all(|name| is_account(name));
        (is_good && (user.is_some() || group.is_some())).then_some((user, group))
    });
    let (user, group) = owner.map(|owner| owner.value).unwrap_or_default();
    if let Some(ListenAddr::Tcp(_) | ListenAddr::Port(_)) = addr {
        for key in ["mode", "owner"] {
            if table.has(key) {
                table.add(table.key_at(&[key]), Problem::NoSocketFile(key));
            }
        }
        return None;
    }
    Some(SocketFile { mode, user, group })
}

/// The addresses, and what is said of them, into `server`.
fn read_listen(table: &Section<'_>, server: &mut Server) -> Option<Vec<At<ListenAddr>>> {
    let items = table.texts_or_tables("listen")?;
    let mut listen = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Item::Text(text) => listen.extend(read_address(table, "listen", &text)),
            Item::Table(inner) => {
                let text = inner.text("address");
                let addr = text.and_then(|text| read_address(&inner, "address", &text));
                if !inner.has("address") {
                    inner.missing("address");
                }
                let mut is_behind = false;
                inner.flag("proxy_protocol", &mut is_behind);
                let file = read_socket_file(&inner, addr.as_ref().map(|addr| &addr.value));
                let Some(addr) = addr else { continue };
                if is_behind {
                    server.proxy_protocol.push(addr.value.clone());
                }
                if let (ListenAddr::Unix(path), Some(file)) = (&addr.value, file) {
                    server.socket_files.insert(path.clone(), file);
                }
                listen.push(addr);
            }
        }
    }
    split_families(listen.iter_mut().map(|addr| &mut addr.value).collect());
    check_listen(table, &listen);
    Some(listen)
}

/// A port alone means IPv4 alone where an IPv6 address has that port beside it: `[":80", "[::]:80"]`.
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

fn check_listen(table: &Section<'_>, listen: &[At<ListenAddr>]) {
    table.check_filled("listen");
    for (index, addr) in listen.iter().enumerate() {
        if let Some(other) = listen[..index]
            .iter()
            .find(|o| o.value.overlaps(&addr.value))
        {
            let line = table.found.line(other.at);
            table.add(addr.at, taken(&addr.value, &other.value, line));
        }
    }
}

/// Why an address cannot be listened at.
pub(crate) fn taken(addr: &ListenAddr, other: &ListenAddr, line: usize) -> Problem {
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
        let target = table.parsed("access_log", |text| match text {
            "off" => Some(None),
            _ => log_target(table.found, text).map(Some),
        })?;
        return target.value.map(|path| AccessLog {
            path,
            format: LogFormat::default(),
        });
    }
    let log = table.table("access_log")?;
    let format = log.word("format").map_or("combined", |word| word.value);
    let path = log.parsed("path", |text| log_target(log.found, text));
    let format = match format {
        "off" => return None,
        "json" => LogFormat::Json,
        "dev" => LogFormat::Dev,
        _ => LogFormat::Combined,
    };
    if !log.has("path") {
        log.missing("path");
    }
    path.map(|path| AccessLog {
        path: path.value,
        format,
    })
}

fn log_target(found: &Findings<'_>, text: &str) -> Option<LogTarget> {
    match text {
        "stdout" => Some(LogTarget::Stdout),
        "stderr" => Some(LogTarget::Stderr),
        _ if text.is_empty() || text.contains('\0') => None,
        path => Some(LogTarget::File(found.resolve(path))),
    }
}

#[cfg(test)]
mod tests;
