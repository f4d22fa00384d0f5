//! Single fields that people change while nodes run: named by their path, as in the file.
//!
//! Only fields that hold at once can be changed so: what waits for a restart belongs into the file, where the next start finds it.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Result};

use super::Settings;
use super::sources::{engine_fields, scrubbed, unknown};

/// The engine's fields that hold at once.
const OF_ENGINE: &[&str] = &["scan_interval", "sweep_interval"];
/// What can be changed, for people.
const CAN_BE: &str = "persist, defaults.…, methods.…, retention.… and engine.scan_interval and sweep_interval can be changed \
                      while nodes run; the others belong into the file";

impl Settings {
    /// Gives one field, by its path as in the file: `defaults.max_attempts`, `methods."billing.charge".timeout`. It is refused, and
    /// nothing changes, if the value is not valid or the field does not hold at once.
    ///
    /// ```
    /// let mut settings = redrive::Settings::default();
    /// settings.set("methods.charge.concurrency", 5.into())?;
    /// settings.set("defaults.timeout", "10s".into())?;
    /// assert_eq!(settings.methods["charge"].concurrency, Some(5));
    /// assert!(settings.set("engine.lease", "1m".into()).unwrap_err().to_string().contains("file"));
    /// assert!(settings.set("retention.keep_moths", 1.into()).is_err());
    /// # Ok::<(), redrive::Error>(())
    /// ```
    pub fn set(&mut self, path: &str, value: Value) -> Result<()> {
        let mut new = self.clone();
        let names = names(path)?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        match names.as_slice() {
            ["persist"] => new.persist = read(path, value)?,
            ["defaults", field] => new.defaults.set(field, value)?,
            ["retention", field] => new.retention = with(path, &new.retention, field, value)?,
            ["engine", field] if OF_ENGINE.contains(field) => new.engine = with(path, &new.engine, field, value)?,
            ["engine", field] if !engine_fields().iter().any(|known| known == field) => {
                return Err(Error::invalid(path, unknown(field, &engine_fields())));
            }
            ["methods", _, "gate"] => {
                return Err(Error::invalid(path, "holds from the next start: set it in the file"));
            }
            ["methods", method, field] => {
                let before = new.methods.remove(*method).unwrap_or_default();
                new.methods.insert((*method).to_owned(), with(path, &before, field, value)?);
            }
            _ => return Err(Error::invalid(path, CAN_BE)),
        }
        new.validate()?;
        *self = new;
        Ok(())
    }
}

/// The names of a path, as TOML reads them.
fn names(path: &str) -> Result<Vec<String>> {
    let wrong = || Error::invalid(path, "is not a path as defaults.max_attempts or methods.\"billing.charge\".timeout");
    // Only a name may stand there: what is not within quotes is none of TOML's own signs.
    if path.split('"').step_by(2).any(|outside| outside.contains(['=', '#', '[', '{', '\n', '\r'])) {
        return Err(wrong());
    }
    let text = format!("{path} = 0");
    let table = DeTable::parse(&text).map_err(|_| wrong())?;
    let (mut names, mut at) = (Vec::new(), table.get_ref());
    loop {
        let (name, value) = at.iter().next().filter(|_| at.len() == 1).ok_or_else(wrong)?;
        names.push(name.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(below) => at = below,
            _ => return Ok(names),
        }
    }
}

/// These fields with another value of one. `null`: as it is built in.
fn with<T: Serialize + DeserializeOwned>(path: &str, of: &T, field: &str, value: Value) -> Result<T> {
    let mut fields = match serde_json::to_value(of) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    match value {
        Value::Null => _ = fields.remove(field),
        value => _ = fields.insert(field.to_owned(), value),
    }
    read(path, fields.into())
}

fn read<T: DeserializeOwned>(path: &str, value: Value) -> Result<T> {
    serde_json::from_value(value).map_err(|e| Error::invalid(path, scrubbed(&e.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_read_as_toml_reads_it() {
        assert_eq!(names("defaults.max_attempts").unwrap(), ["defaults", "max_attempts"]);
        assert_eq!(names("methods.\"a.b\".timeout").unwrap(), ["methods", "a.b", "timeout"]);
        for wrong in ["", "a = 1\nb", "a.", "[a]\nb", "a = {b = 1} #"] {
            assert!(names(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_refused_changes_nothing() {
        let mut settings = Settings::default();
        for (path, value) in [
            ("defaults.max_attempts", Value::from(0)),
            ("defaults.max_atempts", 1.into()),
            ("engine.lease", "1s".into()),
            ("engine.leese", "1s".into()),
            ("engine.scan_interval", "0s".into()),
            ("database", "sqlite::memory:".into()),
            ("targets.x.base_url", "http://x".into()),
            ("methods.x.concurrency", (-1).into()),
            ("methods.x", 1.into()),
        ] {
            assert!(settings.set(path, value).is_err(), "{path}");
            assert_eq!(settings, Settings::default());
        }
        settings.set("methods.x.rate", serde_json::json!({ "tasks": 5, "per": "1s" })).unwrap();
        settings.set("methods.x.max_attempts", "unlimited".into()).unwrap();
        assert_eq!(settings.to_defaults().policy_for("x").max_attempts, None);
        settings.set("engine.scan_interval", "1s".into()).unwrap();
        settings.set("retention.keep_dead", "30d".into()).unwrap();
    }
}
