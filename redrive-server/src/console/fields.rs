//! What a query or a form says: names and values, of which one name may have several. What is empty is not said: a form sends
//! all of its fields.

use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::convert::Infallible;

use crate::server::problem::{Answer, Problem};

/// Names and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let all = url::form_urlencoded::parse(bytes).into_owned();
        Self(all.map(|(name, value)| (name, value.trim().to_owned())).filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// For templates: what a field of this name shows.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == Some(value)
    }

    pub(crate) fn all<'f>(&'f self, name: &str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A value that must be something: a number, an id, a role.
    pub(crate) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Answer<Option<T>> {
        let wrong = |e| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("{name}: {e}"));
        self.get(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// Those of some names.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(name, _)| names.contains(&&**name)).cloned().collect())
    }

    /// With another value, or without any.
    pub(crate) fn with(&self, name: &str, value: Option<&str>) -> Self {
        let mut all: Vec<_> = self.0.iter().filter(|(known, _)| known != name).cloned().collect();
        all.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        Self(all)
    }

    /// As a query, with its question mark if there is anything.
    pub(crate) fn query(&self) -> String {
        let mut all = url::form_urlencoded::Serializer::new(String::new());
        all.extend_pairs(&self.0);
        let all = all.finish();
        if all.is_empty() { all } else { format!("?{all}") }
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A text as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let all: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    all.replace('+', "%20") // a plus of the text is %2B already
}

/// The query of a page.
impl<S: Sync> FromRequestParts<S> for Fields {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::read(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_empty_is_not_said_and_a_query_comes_back_as_it_was() {
        let fields = Fields::read(b"a=1&b=&id=1&id=2&c=x+%26%3D");
        assert_eq!((fields.get("a"), fields.get("b"), fields.text("c")), (Some("1"), None, "x &="));
        assert_eq!(fields.all("id").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(fields.query(), "?a=1&id=1&id=2&c=x+%26%3D");
        assert_eq!(segment("a b+c/d?é"), "a%20b%2Bc%2Fd%3F%C3%A9");
        assert_eq!(fields.only(&["a"]).with("a", None).query(), "");
        assert!(fields.parsed::<u32>("c").is_err() && fields.parsed::<u32>("b").unwrap().is_none());
    }
}
