//! Params encrypted where they are stored: AES-256-GCM, a fresh nonce for each, the method's name authenticated with them.
//!
//! What is stored is a JSON string that names the key: `"redrive:aes256gcm:<key id>:<base64 of nonce and ciphertext>"`. Several
//! keys can be known, one of them is used for what is written. To rotate, add the new one on every node, then make it current on every node,
//! and take the old one away when nothing that waits (or is dead, or archived) names it.
//!
//! *Failure.* A key that is missing or wrong is named in the error, and the task waits: no attempt is burnt, nothing is
//! changed about its params, and it runs when the key is there.

use std::collections::BTreeMap;
use std::fmt;

use aes_gcm::aead::{Aead, Generate, Key as AesKey, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::error::{Error, Result};

const MARK: &str = "\"redrive:aes256gcm:";
const NONCE: usize = 12;

/// The keys for params.
///
/// ```
/// use redrive::Keyring;
///
/// let key = |byte| [byte; 32];
/// let ring = Keyring::new("2026", key(2))?.with("2025", key(1))?; // reads what either wrote, writes with "2026"
/// assert!(!format!("{ring:?}").contains("2, 2"));
/// # Ok::<(), redrive::Error>(())
/// ```
#[derive(Clone)]
pub struct Keyring {
    current: String,
    keys: BTreeMap<String, Key>,
    all: bool,
}

#[derive(Clone)]
struct Key {
    cipher: Aes256Gcm,
    /// For keys of tasks, so that they do not tell what the params are.
    dedup: [u8; 32],
}

impl Keyring {
    /// A key that is used for all that is written. Its id is stored with it: 1 to 50 letters, digits, `-`, `_` or `.`.
    pub fn new(id: impl Into<String>, key: [u8; 32]) -> Result<Self> {
        let current = id.into();
        Self { current: current.clone(), keys: BTreeMap::new(), all: false }.with(current, key)
    }

    /// Another key, with which something was written earlier.
    pub fn with(mut self, id: impl Into<String>, key: [u8; 32]) -> Result<Self> {
        let id = id.into();
        let ok = (1..=50).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !ok {
            let said = format!("{id:?} must be 1 to 50 letters, digits, `-`, `_` or `.`");
            return Err(Error::invalid("key id", said));
        }
        let dedup = blake3::derive_key("redrive 2026 keys of tasks whose params are encrypted", &key);
        let cipher = Aes256Gcm::new(&AesKey::<Aes256Gcm>::from(key));
        self.keys.insert(id, Key { cipher, dedup });
        Ok(self)
    }

    /// From base64, as it stands in settings.
    pub fn decode(base64: &str) -> Result<[u8; 32]> {
        let wrong = || Error::invalid("key", "must be 32 bytes in base64, such as `openssl rand -base64 32` prints");
        STANDARD.decode(base64.trim()).ok().and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)
    }

    /// Encrypts the params of all tasks, not only of those that ask for it.
    pub fn encrypt_all(mut self) -> Self {
        self.all = true;
        self
    }

    pub(crate) fn encrypts_all(&self) -> bool {
        self.all
    }

    /// Params as they are stored.
    pub(crate) fn seal(&self, method: &str, params: &str) -> Result<String> {
        let broken = |what: &str| Error::Conflict {
            doing: "encrypt the params of",
            id: method.to_owned(),
            why: what.to_owned(),
        };
        let key = self.keys.get(&self.current).ok_or_else(|| broken("there is no key"))?;
        let nonce = Nonce::try_generate().map_err(|_| broken("the system gives no random numbers"))?;
        let payload = Payload { msg: params.as_bytes(), aad: method.as_bytes() };
        let sealed = key.cipher.encrypt(&nonce, payload).map_err(|_| broken("they are too long"))?;
        let both = [nonce.as_slice(), &sealed].concat();
        Ok(format!("{MARK}{}:{}\"", self.current, STANDARD.encode(both)))
    }

    /// For the key of a task whose params are encrypted.
    pub(crate) fn dedup_key(&self) -> Option<[u8; 32]> {
        self.keys.get(&self.current).map(|key| key.dedup)
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.keys.keys().collect();
        f.debug_struct("Keyring").field("current", &self.current).field("keys", &ids).field("all", &self.all).finish()
    }
}

/// Whether params are encrypted.
pub(crate) fn is_sealed(params: &str) -> bool {
    params.starts_with(MARK)
}

/// Params as they were, or why they cannot be read.
pub(crate) fn open(ring: Option<&Keyring>, method: &str, params: &str) -> std::result::Result<String, String> {
    let sealed =
        params.strip_prefix(MARK).and_then(|rest| rest.strip_suffix('"')).and_then(|rest| rest.split_once(':'));
    let Some((id, text)) = sealed else { return Err("they are damaged".into()) };
    let Some(key) = ring.and_then(|ring| ring.keys.get(id)) else {
        return Err(format!("they are encrypted with the key {id:?}, which this node does not have"));
    };
    let wrong =
        || format!("the key {id:?} that this node has is not the one they were encrypted with, or they are damaged");
    let both = STANDARD.decode(text).map_err(|_| wrong())?;
    let (nonce, sealed) = both.split_at_checked(NONCE).ok_or_else(wrong)?;
    let nonce = Nonce::try_from(nonce).map_err(|_| wrong())?;
    let plain = key.cipher.decrypt(&nonce, Payload { msg: sealed, aad: method.as_bytes() }).map_err(|_| wrong())?;
    String::from_utf8(plain).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(id: &str, byte: u8) -> Keyring {
        Keyring::new(id, [byte; 32]).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_with_its_key_only() {
        let sealed = ring("a", 1).seal("pay", r#"{"card":"4242"}"#).unwrap();
        assert!(is_sealed(&sealed) && !sealed.contains("4242"));
        assert!(serde_json::from_str::<String>(&sealed).is_ok(), "it is JSON");
        assert_eq!(open(Some(&ring("a", 1)), "pay", &sealed).unwrap(), r#"{"card":"4242"}"#);
        let rotated = ring("b", 2).with("a", [1; 32]).unwrap();
        assert!(open(Some(&rotated), "pay", &sealed).is_ok());
        for (ring, why) in
            [(None, "does not have"), (Some(ring("b", 1)), "does not have"), (Some(ring("a", 9)), "not the one")]
        {
            let said = open(ring.as_ref(), "pay", &sealed).unwrap_err();
            assert!(said.contains("\"a\"") && said.contains(why), "{said}");
        }
        assert!(open(Some(&ring("a", 1)), "refund", &sealed).is_err(), "another method's");
    }

    #[test]
    fn the_same_params_look_different_each_time() {
        let ring = ring("a", 1);
        assert_ne!(ring.seal("m", "1").unwrap(), ring.seal("m", "1").unwrap());
    }

    #[test]
    fn nothing_of_a_key_is_shown() {
        let shown = format!("{:?}", ring("k", 77));
        assert!(shown.contains("\"k\"") && !shown.contains("77"), "{shown}");
        assert!(Keyring::decode("too short").unwrap_err().to_string().contains("32 bytes"));
        assert!(Keyring::new("a b", [0; 32]).is_err());
    }
}
