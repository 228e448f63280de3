"""The protocol: conversion of messages both ways, status codes, limits of messages, and TLS files."""
