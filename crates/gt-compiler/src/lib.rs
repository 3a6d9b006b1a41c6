//! gt-compiler
