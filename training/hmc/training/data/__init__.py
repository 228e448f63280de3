"""Training text: text files, parallel text, the vocabulary, tokenised corpora, batches."""
