//! What must not be shown: passwords, signing keys, addresses with tokens in them.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A value that is read from settings and never shown: not in `Debug`, not in JSON.
///
/// ```
/// use redrive::Secret;
///
/// let password = Secret::from("hunter2");
/// assert_eq!(format!("{password:?}"), "***");
/// assert_eq!(serde_json::to_string(&password)?, "\"***\"");
/// assert_eq!(password.reveal(), "hunter2");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value itself, for whoever has to use it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A text in which this value may occur, without it.
    pub fn hide_in(&self, text: &str) -> String {
        if self.0.is_empty() { text.to_owned() } else { text.replace(&self.0, "***") }
    }
}

impl<T: Into<String>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self(value.into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str("***")
    }
}
