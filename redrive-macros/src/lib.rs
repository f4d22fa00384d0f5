//! Macros of redrive. They are re-exported by the crate `redrive`; depend on that.

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

mod backoff;
mod err_columns;
mod error_kind;
mod errors;
mod expand;
mod key;
mod options;
mod problems;
mod retryable;
mod signature;
mod value;

/// Gives each variant of an error enum its kind: the variant's name, or `#[kind("…")]`. A struct has its own name.
#[proc_macro_derive(ErrorKind, attributes(kind))]
pub fn error_kind(input: TokenStream) -> TokenStream {
    error_kind::expand(&parse_macro_input!(input as DeriveInput)).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Reads an entity with sqlx: a struct with named fields, one of which is of the type `redrive::guard::ErrColumns`. The others
/// are read by their names, or by `#[column("…")]`.
#[proc_macro_derive(ErrColumns, attributes(column))]
pub fn err_columns(input: TokenStream) -> TokenStream {
    err_columns::expand(&parse_macro_input!(input as DeriveInput)).unwrap_or_else(syn::Error::into_compile_error).into()
}

#[doc = include_str!("retryable.md")]
#[proc_macro_attribute]
pub fn retryable(options: TokenStream, item: TokenStream) -> TokenStream {
    retryable::expand(options.into(), item.into()).into()
}
