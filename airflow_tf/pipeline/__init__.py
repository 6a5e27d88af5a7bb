"""The declaration language: ``*.tf.yaml`` files become DAGs made of the package's public operators."""
