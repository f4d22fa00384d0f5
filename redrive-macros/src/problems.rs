//! What is wrong with an attribute, gathered so that all of it is reported at once.

use proc_macro2::TokenStream as Tokens;

/// Errors so far.
#[derive(Default)]
pub(crate) struct Problems(Option<syn::Error>);

impl Problems {
    pub(crate) fn add(&mut self, problem: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(problem),
            none => *none = Some(problem),
        }
    }

    /// The value, or nothing and one problem more.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|problem| self.add(problem)).ok()
    }

    pub(crate) fn into_result(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }

    /// Each as a `compile_error!`.
    pub(crate) fn to_tokens(&self) -> Tokens {
        self.0.as_ref().map(syn::Error::to_compile_error).unwrap_or_default()
    }
}
