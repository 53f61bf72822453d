"""What tests share: builders and requirements, nothing with assertions about the product."""
