//! What messages and the reference say is expected of a value, and beside what a key may be set.

pub(crate) const LISTEN_ADDRESS: &str = crate::ListenAddr::EXPECTED;
pub(crate) const LISTEN_ADDRESS_OR_OFF: &str =
    "\"off\", or an address such as \"127.0.0.1:8090\" or \"unix:/run/admin.sock\"";
pub(crate) const SOCKET_OR_OFF: &str =
    "\"off\", or a Unix socket such as \"unix:/run/penstock/control.sock\"";
pub(crate) const APP_ENTRY: &str = "\"module:callable\", \"module:factory()\" or a .ru or .rb file";
pub(crate) const ONLY_SCRIPT_KINDS: &str = "the kinds \"wsgi\", \"asgi\" and \"rack\"";
pub(crate) const ONLY_ROUTE_WITH_BACKEND: &str = "a route with an `app`, `upstream` or `split`";
pub(crate) const ONLY_THREADED: &str = "the kinds \"wsgi\" and \"rack\" without `async`";
pub(crate) const ONLY_ASGI: &str = "the kind \"asgi\"";
pub(crate) const ONLY_REACTOR: &str = "applications with a reactor: the kind \"asgi\", or `async`";
pub(crate) const ONLY_PRELOADED: &str =
    "the kinds \"wsgi\" and \"rack\" without `async`, with `preload`";
pub(crate) const ONLY_PROGRAM_KINDS: &str = "the kinds \"command\" and \"fastcgi\"";
pub(crate) const APP_COMMAND: &str =
    "a command such as \"thin -p {port} start\", each quote closed";
pub(crate) const JOB_COMMAND: &str =
    "a command such as \"celery -A shop worker\", each quote closed";
pub(crate) const TIME_OF_DAY: &str = "a time of the day such as \"03:30\"";
pub(crate) const ONLY_PROXIED: &str =
    "a route with an `upstream`, or an `app` of kind \"command\" or \"fastcgi\"";
pub(crate) const TRUSTED_NETWORK: &str =
    "\"unix\", an address, or a network such as \"10.0.0.0/8\"";
pub(crate) const PATH_PREFIX: &str = "a path such as \"/api\", without a final slash";
pub(crate) const HEADER_FIELD: &str = crate::headers::FIELD_EXPECTED;
pub(crate) const UPSTREAM_NAME: &str = "the name of an [upstreams.NAME] table";
pub(crate) const SITE_HOST: &str =
    "a host such as \"example.com\" or \"*.example.com\", without scheme and port";
pub(crate) const SITE_TLS: &str = "\"auto\", \"local\" or \"off\"";
pub(crate) const ALPN_PROTOCOL: &str = "a protocol such as \"postgresql\" or \"mqtt\"";
pub(crate) const EMAIL_ADDRESS: &str = "an e-mail address such as \"ops@example.com\"";
pub(crate) const HTTP_URL: &str = "a URL such as \"http://127.0.0.1:5000/allowed\"";
pub(crate) const ROUTE_PATH: &str = "a path such as \"/about\", \"/assets/*\" or \"*.php\"";
pub(crate) const CONDITION_PATH: &str =
    "a path such as \"/about\", \"/assets/*\" or \"*.php\", or a regular expression after `~`";
pub(crate) const REDIRECT_TARGET: &str =
    "a URL such as \"https://new.example{uri}\" or a path such as \"/new/{re.1}\"";
pub(crate) const REALM: &str = "a text without quotes, backslashes and control characters";
pub(crate) const SERVICE_URL: &str =
    "a URL such as \"http://127.0.0.1:4180/oauth2/auth\", with http or https";
pub(crate) const CORS_ORIGIN: &str = "an origin such as \"https://app.example\" or \"https://*.example.com\", without a path, or \"*\"";
pub(crate) const REQUEST_RATE: &str =
    "a rate of requests such as \"10/s\", \"100/m\", \"1000/h\" or \"5000/d\"";
pub(crate) const RATE_KEY: &str =
    "\"client\", \"user\", \"host\", \"path\", \"route\", \"header:NAME\" or \"cookie:NAME\"";
pub(crate) const SIGNED_TEXT: &str =
    "a text with {path} and {secret}, such as \"{expires}{path} {secret}\"";
pub(crate) const SHARED_SECRET: &str = "a secret of at least 16 bytes";
pub(crate) const PLAIN_TEXT: &str = "a text without control characters";
pub(crate) const PARAMETER_NAME: &str = "a parameter such as \"access_token\"";
pub(crate) const BODY_TEXT: &str = "a text";
pub(crate) const MEDIA_TYPE: &str = "a media type such as \"application/json\"";
pub(crate) const CODING: &str = "\"zstd\", \"br\" or \"gzip\"";
pub(crate) const MEDIA_TYPE_PATTERN: &str =
    "a media type such as \"application/json\", \"text/*\" or \"*+json\"";
pub(crate) const CANONICAL_HOST: &str = "a host such as \"example.com\", without scheme and port";
pub(crate) const METHOD_EXPECTED: &str = "a method such as \"GET\", in capitals";
pub(crate) const PROTOCOL_EXPECTED: &str = "\"HTTP/1.0\" or \"HTTP/1.1\"";
pub(crate) const CONDITION_NAME: &str =
    "the name of a [conditions.NAME] table, with `!` in front for its opposite";
pub(crate) const FILE_PATH: &str = "a path, relative to the folder of the file";
pub(crate) const PORT: &str = "a port such as \"5432\"";
pub(crate) const HIDE_PATTERN: &str = crate::hide::HIDE_EXPECTED;
pub(crate) const TRY_FILE: &str =
    "a path inside the root such as \"{path}.html\" or \"/index.html\"";
pub(crate) const UPSTREAM_SERVER: &str = crate::ServerAddr::EXPECTED;
pub(crate) const SERVER_NAME: &str =
    "a host name such as \"api.example\" or an IP address, without a port";
pub(crate) const FINGERPRINT: &str =
    "a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons";
pub(crate) const HASH_KEY_EXPECTED: &str =
    "\"path\", \"uri\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"";
pub(crate) const ONLY_SPLIT: &str = "a route with `split`";
pub(crate) const SPLIT_KEY: &str =
    "\"cookie\", \"request\", \"client\", \"header:NAME\" or \"cookie:NAME\"";
pub(crate) const COOKIE_NAME: &str = "the name of a cookie";
pub(crate) const HOST_HEADER: &str =
    "\"client\", \"server\", or a host such as \"app.example\", with or without a port";
pub(crate) const SCRIPT_PATH: &str = "a path inside `root` such as \"index.php\"";
pub(crate) const PROBE_EXPECTED: &str = "a path such as \"/up\", without spaces";
pub(crate) const STATUS_RANGE: &str = "a status or a range such as \"200-399\", from 100 to 599";
pub(crate) const ONLY_GATEWAYS: &str = "other protocols than \"http\"";
pub(crate) const CACHE_EXPECTED: &str = "the name of a [caches.NAME] table";
pub(crate) const PARAMETER_EXPECTED: &str = "the name of a parameter such as \"page\" or \"utm_*\"";
pub(crate) const FIELD_EXPECTED: &str = "the name of a field such as \"X-Tenant\"";
pub(crate) const COOKIE_EXPECTED: &str = "the name of a cookie such as \"lang\"";
pub(crate) const TAGS_EXPECTED: &str =
    "the name of a field such as \"Surrogate-Key\", and none of framing or the connection";
/// The most messages of a history.
pub(crate) const MAX_HISTORY_MESSAGES: u64 = 1_000_000;
pub(crate) const EVENT_TYPE_EXPECTED: &str =
    "a text of at most 255 bytes without control characters";
pub(crate) const CHANNEL_EXPECTED: &str =
    "a channel such as \"news\" or \"news.{path.1}\", of at most 255 bytes";
pub(crate) const ORIGIN_EXPECTED: &str =
    "an origin such as \"https://app.example\", without a path, or \"*\"";
pub(crate) const ACCESS_LOG_SHORT: &str =
    "\"off\", \"stdout\", \"stderr\", \"journald\", \"syslog\" or a path";
pub(crate) const ACCESS_LOG_PATH: &str = "a path, \"stdout\", \"stderr\", \"journald\", \"syslog\" \
    or an address such as \"syslog:10.0.0.1:514\"";
pub(crate) const ACCESS_LOG_FORMAT: &str =
    "\"combined\", \"common\", \"json\", \"dev\", \"off\" or a text with words in braces";
pub(crate) const LOG_FIELD: &str = "the name of a value such as \"status\" or \"header.referer\"";
pub(crate) const STATUS_PATTERN: &str = "a status such as \"404\" or a class such as \"5xx\"";
pub(crate) const COLLECTOR_URL: &str = "a URL such as \"http://127.0.0.1:4318\"";
