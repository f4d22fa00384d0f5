//! A named target, ready to be used: where its requests go, and the secrets that go along and are stored nowhere.

use std::fmt;

use redrive::{Error, MethodOptions, PolicyPatch, Result, Secret, TargetSettings};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::headers::is_reserved;
use super::request::check_path;

/// A target of the settings.
pub struct Target {
    name: String,
    base: Url,
    headers: HeaderMap,
    keys: Vec<Vec<u8>>,
    /// What is not to be shown: whole headers and secrets, and the words in them.
    hidden: Vec<Secret>,
    settings: TargetSettings,
}

/// Shorter parts of a secret are not looked for in what is shown: they would be found everywhere.
const SHORTEST_HIDDEN: usize = 6;

impl Target {
    /// From its settings.
    pub fn new(name: &str, settings: &TargetSettings) -> Result<Self> {
        let field = |field: &str| format!("targets.{name}.{field}");
        let base = Url::parse(&settings.base_url).map_err(|e| Error::invalid(field("base_url"), e.to_string()))?;
        let mut headers = HeaderMap::new();
        for (name, value) in &settings.headers {
            let wrong = || Error::invalid(field("headers"), format!("{name:?} and its value are not a header"));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong())?;
            if is_reserved(name.as_str()) {
                return Err(Error::invalid(field("headers"), format!("{name} is ours to set")));
            }
            let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let (keys, hidden) = (settings.signing_keys(), hidden(settings));
        Ok(Self { name: name.to_owned(), base, headers, keys, hidden, settings: settings.clone() })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policy fields of its tasks.
    pub fn policy(&self) -> &PolicyPatch {
        &self.settings.policy
    }

    /// The limits of its tasks.
    pub fn limits(&self) -> MethodOptions {
        self.settings.limits()
    }

    /// The address of a path of its, which cannot lead out of its base.
    pub fn url(&self, path: &str) -> Result<Url, String> {
        check_path(path)?;
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        let base = self.base.path().trim_end_matches('/');
        let mut url = self.base.clone(); // only its path is parsed anew
        match path.trim_start_matches('/') {
            "" if path.is_empty() => url.set_path(base),
            rest => url.set_path(&format!("{base}/{rest}")),
        }
        url.set_query(query);
        let inside = url.path().strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if inside && self.is_at(&url) { Ok(url) } else { Err("leads out of the target's base".into()) }
    }

    /// Whether an address is of its origin: only there go its secrets, and only there may a private address be.
    pub(super) fn is_at(&self, url: &Url) -> bool {
        // As their `origin()`s would be, which are made for every comparison.
        url.scheme() == self.base.scheme()
            && url.host_str() == self.base.host_str()
            && url.port_or_known_default() == self.base.port_or_known_default()
    }

    /// Whether it may be at a private address.
    pub(super) fn allows_private(&self) -> bool {
        self.settings.allow_private
    }

    pub(super) fn keys(&self) -> &[Vec<u8>] {
        &self.keys
    }

    /// Adds its headers; they win over a caller's.
    pub(super) fn add_headers(&self, headers: &mut HeaderMap) {
        self.headers.iter().for_each(|(name, value)| _ = headers.insert(name.clone(), value.clone()));
    }

    /// Whether there is anything that must not be shown.
    pub(super) fn has_secrets(&self) -> bool {
        !self.hidden.is_empty()
    }

    /// A text, or bytes, without its secrets, should a service say them: a whole header, and the words in it.
    pub(super) fn hide_in(&self, bytes: &[u8]) -> Vec<u8> {
        self.hidden.iter().fold(bytes.to_vec(), |bytes, secret| without(&bytes, secret.reveal().as_bytes()))
    }
}

fn without(bytes: &[u8], secret: &[u8]) -> Vec<u8> {
    let (mut left, mut rest) = (Vec::with_capacity(bytes.len()), bytes);
    while let Some((first, after)) = rest.split_first() {
        match rest.strip_prefix(secret) {
            Some(after) => {
                left.extend_from_slice(b"***");
                rest = after;
            }
            None => {
                left.push(*first);
                rest = after;
            }
        }
    }
    left
}

fn hidden(settings: &TargetSettings) -> Vec<Secret> {
    let whole = settings.headers.values().chain(&settings.signing_secret);
    let words = whole.clone().flat_map(|secret| secret.reveal().split_whitespace().map(Secret::from));
    whole.cloned().chain(words).filter(|secret| secret.reveal().len() >= SHORTEST_HIDDEN).collect()
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.name).field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(base: &str) -> Target {
        let mut settings = TargetSettings::default();
        settings.base_url = base.into();
        settings.headers = [("Authorization".to_owned(), "Bearer secret-token".into())].into();
        settings.signing_secret = Some("whsec_c2VjcmV0LXNlY3JldA==".into());
        Target::new("t", &settings).unwrap()
    }

    #[test]
    fn paths_are_appended_and_stay_below() {
        let api = target("https://h/api/");
        for (path, url) in [
            ("", "https://h/api"),
            ("/", "https://h/api/"),
            ("/v1/orders?a=b&c", "https://h/api/v1/orders?a=b&c"),
            ("v1", "https://h/api/v1"),
            ("@evil.org/", "https://h/api/@evil.org/"),
            ("/a/../b", "https://h/api/b"),
            ("?to=https://x/../..", "https://h/api?to=https://x/../.."),
            (":8080/x", "https://h/api/:8080/x"),
        ] {
            assert_eq!(api.url(path).map(String::from), Ok(url.to_owned()), "{path}");
        }
        for path in [
            "/..",
            "/../admin",
            "/%2e%2e/admin",
            "/a/../../admin",
            "//evil.org",
            "https://evil.org",
            "/../apix",
            "\\..\\x",
        ] {
            assert!(api.url(path).is_err(), "{path}: {:?}", api.url(path));
        }
        assert_eq!(target("https://h").url("/../x").map(String::from), Ok("https://h/x".into()));
        assert_eq!(target("https://h").url("@evil.org").map(String::from), Ok("https://h/@evil.org".into()));
    }

    #[test]
    fn headers_that_are_ours_are_refused() {
        let mut settings = TargetSettings::default();
        settings.base_url = "https://h".into();
        settings.headers = [("Redrive-Fence".to_owned(), "x".into())].into();
        let said = Target::new("t", &settings).unwrap_err().to_string();
        assert_eq!(said, "targets.t.headers: redrive-fence is ours to set");
    }

    #[test]
    fn secrets_are_not_shown() {
        let target = target("https://h");
        assert_eq!(format!("{target:?}"), r#"Target { name: "t", base: "https://h/", .. }"#);
        let shown = target.hide_in(b"no: Bearer secret-token, secret-token, whsec_c2VjcmV0LXNlY3JldA==\xff");
        assert_eq!(shown, b"no: ***, ***, ***\xff");
    }
}
